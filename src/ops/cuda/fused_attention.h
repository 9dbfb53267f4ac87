// Attention by a library, in one kernel for each pass: cuDNN's, if it was found at build time and is found at
// run time. Without dropout, since the library has random numbers of its own.
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

// Tensors are bfloat16, aligned to 16 bytes, with the shapes of ops/kernels.h.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // Whether the library computed it; if not, why_not() has the reason. New sizes need a plan, which takes
  // about a second and is not made during a capture. Results are the same bits every time, but for the
  // gradient of q when it need not be `ordered`.
  virtual bool forward(const AttentionSizes& sizes, void* out, float* lse, const void* qkv) = 0;
  virtual bool backward(const AttentionSizes& sizes, void* dqkv, const void* dout, const void* out,
                        const float* lse, const void* qkv) = 0;
  // The reason for the last call's failure.
  virtual std::string why_not() const = 0;
};

// For this thread's GPU; null when fused_attention_library() has a reason.
std::unique_ptr<FusedAttention> make_fused_attention(cudaStream_t stream, KernelScratch& scratch,
                                                     bool ordered);
AttentionLibrary fused_attention_library();

}  // namespace shoal::cuda
