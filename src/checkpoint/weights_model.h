// A GPT-2 as other programs' files describe it, and the tensors that follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace shoal {

struct WeightsModel {
  int n_layer = 0, n_head = 0, n_embd = 0;
  int n_positions = 0;
  std::int64_t vocab_size = 0;
  bool bias = true;           // in linear layers and LayerNorms
  bool gelu_tanh = true;      // else exact
  bool gelu_is_given = true;  // false: the file does not say; it is then that of its program
  bool tied = true;           // the head's matrix is the embedding's
  bool operator==(const WeightsModel&) const = default;
};

// How matrices of linear layers are stored: [out, in], as in Shoal, or transposed.
enum class LinearLayout { out_in, in_out };

struct WeightsTensor {
  std::string name;         // without "transformer."
  Shape shape;              // as Shoal has it
  bool transposed = false;  // stored [in, out]
  Shape stored_shape() const { return transposed ? Shape{shape[1], shape[0]} : shape; }
  std::string full_name() const;
};

inline constexpr std::string_view kHeadName = "lm_head.weight";  // has no "transformer."

// wte, wpe, the tensors of layer 0, those of layer 1, ..., the last LayerNorm's, and an untied head's.
std::vector<WeightsTensor> weights_tensors(const WeightsModel& model,
                                           LinearLayout layout = LinearLayout::out_in);

}  // namespace shoal
