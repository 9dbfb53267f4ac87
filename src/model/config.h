// The sizes of a GPT-2 and the choices that change its function.
#pragma once

#include <cstdint>

#include "ops/kernels.h"

namespace shoal {

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

  int head_size() const { return n_embd / n_head; }
  bool operator==(const GptConfig&) const = default;
};

}  // namespace shoal
