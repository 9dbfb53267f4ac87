// The sizes of a GPT-2 and the choices that change its function.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/kernels.h"

namespace shoal {

// The linear layers of a block.
enum class Linear : std::uint8_t { attn_c_attn, attn_c_proj, mlp_c_fc, mlp_c_proj };
inline constexpr int kLinears = 4;
std::string_view name_of(Linear layer);  // "attn.c_attn"

// Adapters of low rank (LoRA, Hu et al. 2021): a linear layer of input x gives scale() * B (A dropout(x))
// more.
struct LoraConfig {
  int rank = 0;  // rows of A and columns of B; 0: no adapters
  double alpha = 16;
  double dropout = 0;
  std::array<bool, kLinears> targets = {true, false, false, false};

  bool on(Linear layer) const { return rank > 0 && targets[static_cast<std::size_t>(layer)]; }
  float scale() const { return static_cast<float>(alpha / rank); }
  bool operator==(const LoraConfig&) const = default;
};

struct GptConfig {
  int n_layer = 12;
  int n_head = 12;
  int n_embd = 768;
  int block_size = 1024;
  std::int64_t vocab_size = 50257;
  double dropout = 0;
  bool bias = true;
  Gelu gelu = Gelu::tanh;
  bool tied = true;  // the head's matrix is the embedding's
  LoraConfig lora = {};
  // Units that are not trained, by patterns of the shell: "embedding", "block.[0-5]". Adapters always are.
  std::vector<std::string> frozen = {};

  int head_size() const { return n_embd / n_head; }
  bool operator==(const GptConfig&) const = default;
};

}  // namespace shoal
