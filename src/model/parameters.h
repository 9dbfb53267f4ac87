// The parameters of each layer, found by name once, when the model is built. A parameter that is missing
// throws Error with its name and its unit's.
#pragma once

#include "model/unit.h"

namespace shoal {

struct AffineParameters {
  ParameterSlice weight;
  ParameterSlice bias;  // empty in models without biases
};

struct EmbeddingParameters {
  explicit EmbeddingParameters(const UnitSpec& unit);
  ParameterSlice wte;  // [V' padded, C]
  ParameterSlice wpe;  // [T, C]
};

struct BlockParameters {
  BlockParameters(const UnitSpec& unit, bool bias);
  AffineParameters ln_1;         // [C]
  AffineParameters attn_c_attn;  // [3 H' D, C]
  AffineParameters attn_c_proj;  // [C, H' D]
  AffineParameters ln_2;         // [C]
  AffineParameters mlp_c_fc;     // [F', C]
  AffineParameters mlp_c_proj;   // [C, F']
};

struct HeadParameters {
  HeadParameters(const UnitSpec& unit, bool bias, bool tied);
  AffineParameters ln_f;   // [C]
  ParameterSlice lm_head;  // [V' padded, C]; empty where it is the embedding's matrix
};

}  // namespace shoal
