// Attention as a library has it, in one kernel each way: cuDNN's, where it was found when this was built and
// is found when it runs. Without dropout, whose numbers are its own.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/cuda.h"
#include "ops/cuda/memory.h"

namespace shoal::cuda {

struct AttentionSizes {
  std::int64_t B, T, H, D;
  auto operator<=>(const AttentionSizes&) const = default;
};

// Tensors are bfloat16, aligned to 16 bytes, and stand as ops/kernels.h has them.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // Whether it was done; if not, why_not() has the reason. Sizes that are new are made a plan for, which
  // takes about a second; not while a graph is captured. The same bits every time.
  virtual bool forward(const AttentionSizes& sizes, void* out, float* lse, const void* qkv) = 0;
  virtual bool backward(const AttentionSizes& sizes, void* dqkv, const void* dout, const void* out,
                        const float* lse, const void* qkv) = 0;
  // Of the last call.
  virtual std::string why_not() const = 0;
};

// For this thread's GPU. Null where fused_attention_library() says why.
std::unique_ptr<FusedAttention> make_fused_attention(cudaStream_t stream, Scratch& scratch);
AttentionLibrary fused_attention_library();

}  // namespace shoal::cuda
