#include "checkpoint/weights_model.h"

#include <fmt/format.h>

namespace shoal {

std::vector<WeightsTensor> weights_tensors(const WeightsModel& model, LinearLayout layout) {
  const std::int64_t c = model.n_embd;
  std::vector<WeightsTensor> tensors = {{"wte.weight", {model.vocab_size, c}},
                                        {"wpe.weight", {model.n_positions, c}}};
  const auto add = [&](const std::string& name, const Shape& weight) {
    tensors.push_back({name + ".weight", weight, layout == LinearLayout::in_out && weight.rank() == 2});
    if (model.bias) tensors.push_back({name + ".bias", {weight[0]}});
  };
  for (int layer = 0; layer < model.n_layer; ++layer) {
    const auto prefix = fmt::format("h.{}.", layer);
    add(prefix + "ln_1", {c});
    add(prefix + "attn.c_attn", {3 * c, c});
    add(prefix + "attn.c_proj", {c, c});
    add(prefix + "ln_2", {c});
    add(prefix + "mlp.c_fc", {4 * c, c});
    add(prefix + "mlp.c_proj", {c, 4 * c});
  }
  add("ln_f", {c});
  if (!model.tied) tensors.push_back({std::string(kHeadName), {model.vocab_size, c}});
  return tensors;
}

std::string WeightsTensor::full_name() const { return name == kHeadName ? name : "transformer." + name; }

}  // namespace shoal
