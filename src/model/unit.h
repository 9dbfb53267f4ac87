// Parameters and units. A unit (the embedding, one block, the head) owns one flat buffer of parameters and
// one of gradients; its parameters are named views into them. Everything that treats parameters in bulk
// (reduction, sharding, checkpoints, the optimizer, the memory estimate) works on units and knows no layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "model/config.h"

namespace shoal {

struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;
  double stddev = 0;
};

// How a parameter is divided over a tensor-parallel group: not at all, or along one dimension, within each of
// `parts` equal pieces of it (the fused q, k, v projection has three).
struct Placement {
  int dim = -1;
  int parts = 1;
  bool replicated() const { return dim < 0; }
};

struct ParameterSpec {
  std::string name;   // nanoGPT's names: "transformer.h.0.attn.c_attn.weight"; weights are [out, in]
  Shape shape;        // of the whole model's parameter
  Shape local_shape;  // what this rank holds, padding included; padding is zero and stays zero
  Initializer init;
  bool decay = false;  // weight decay applies: two dimensions or more
  Placement placement;
  std::int64_t offset = 0;  // of the first element in the unit's flat buffer
};

struct UnitSpec {
  std::string name;                       // "embedding", "block.0", "head"
  std::vector<ParameterSpec> parameters;  // decayed ones first
  std::int64_t size = 0;                  // elements of the flat buffer, gaps for alignment included
  std::int64_t decayed = 0;               // the first so many elements hold the decayed parameters

  const ParameterSpec& parameter(std::string_view name_end) const;  // by the end of its name; throws Error
};

// The flat buffer of a unit and the views into it.
struct UnitView {
  const UnitSpec* spec = nullptr;
  Tensor flat;

  // The local view of parameter i, or of the one whose name ends so; empty when the model has no such
  // parameter.
  Tensor operator[](std::size_t i) const;
  Tensor operator[](std::string_view name_end) const;
};

// Unit 0 is the embedding, 1 ... n_layer the blocks, n_layer + 1 the head (whose matrix is the embedding's).
std::vector<UnitSpec> gpt_units(const GptConfig& config);

// Classes as allocated: the vocabulary rounded up so that rows of logits stay aligned.
std::int64_t padded_vocabulary(const GptConfig& config);

std::int64_t parameter_count(const std::vector<UnitSpec>& units);  // of the whole model, padding not counted

// Training FLOPs per token, forward and backward: 6 N + 12 L C T, the attention counted without its causal
// half.
double flops_per_token(const GptConfig& config);

// Fills elements [first, first + n) of a parameter, out f32 [n], from its specification; they depend on the
// seed, its name and their index alone.
void initialize(Backend& backend, const ParameterSpec& spec, const Tensor& out, std::int64_t first,
                std::uint64_t seed);

}  // namespace shoal
