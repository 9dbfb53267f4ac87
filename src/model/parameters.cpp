#include "model/parameters.h"

namespace shoal {
namespace {

AffineParameters affine(const UnitSpec& unit, const std::string& name, bool bias) {
  return {.weight = unit.parameter(name + ".weight").slice(),
          .bias = bias ? unit.parameter(name + ".bias").slice() : ParameterSlice{}};
}

}  // namespace

EmbeddingParameters::EmbeddingParameters(const UnitSpec& unit)
    : wte(unit.parameter("wte.weight").slice()), wpe(unit.parameter("wpe.weight").slice()) {}

BlockParameters::BlockParameters(const UnitSpec& unit, bool bias)
    : ln_1(affine(unit, "ln_1", bias)),
      attn_c_attn(affine(unit, "attn.c_attn", bias)),
      attn_c_proj(affine(unit, "attn.c_proj", bias)),
      ln_2(affine(unit, "ln_2", bias)),
      mlp_c_fc(affine(unit, "mlp.c_fc", bias)),
      mlp_c_proj(affine(unit, "mlp.c_proj", bias)) {}

HeadParameters::HeadParameters(const UnitSpec& unit, bool bias, bool tied)
    : ln_f(affine(unit, "transformer.ln_f", bias)),
      lm_head(tied ? ParameterSlice{} : unit.parameter("lm_head.weight").slice()) {}

}  // namespace shoal
