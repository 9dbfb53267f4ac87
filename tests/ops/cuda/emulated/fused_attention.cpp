// Stands in for cuDNN's attention with the plain kernels, so that wrong requests and arguments are noticed.
#include "ops/cuda/fused_attention.h"

#include <cmath>
#include <vector>

#include "core/dtype.h"
#include "ops/cuda/attention.cuh"

namespace shoal::cuda {
namespace {

Heads heads_of(const AttentionSizes& at) {
  return {at.B, at.T, at.H, at.D, 1 / std::sqrt(static_cast<float>(at.D))};
}

class PlainInstead final : public FusedAttention {
 public:
  bool forward(const AttentionSizes& sizes, void* out, float* lse, const void* qkv) override {
    if (!can(sizes)) return false;
    plain_attention_forward<bfloat16>({out, lse, qkv, heads_of(sizes), 0, Mask(Dropout{})}, nullptr);
    return true;
  }

  bool backward(const AttentionSizes& sizes, void* dqkv, const void* dout, const void* out, const float* lse,
                const void* qkv) override {
    if (!can(sizes)) return false;
    const Heads at = heads_of(sizes);
    std::vector<float> delta(static_cast<std::size_t>(at.B * at.H * at.T));
    const auto *of_out = static_cast<const bfloat16*>(out), *of_dout = static_cast<const bfloat16*>(dout);
    for (std::int64_t i = 0; i < at.B * at.T * at.H * at.D; ++i) {
      const std::int64_t h = i / at.D % at.H, t = i / at.D / at.H % at.T, b = i / at.D / at.H / at.T;
      delta[static_cast<std::size_t>(at.lse(b, h) + t)] += to_float(of_out[i]) * to_float(of_dout[i]);
    }
    plain_attention_backward<bfloat16>({dqkv, dout, delta.data(), lse, qkv, at, 0, Mask(Dropout{})}, nullptr);
    return true;
  }

  std::string why_not() const override { return "the emulated library takes no heads of 40 channels"; }

 private:
  static bool can(const AttentionSizes& sizes) { return sizes.D != 40; }
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(cudaStream_t, KernelScratch&, bool) {
  return std::make_unique<PlainInstead>();
}

AttentionLibrary fused_attention_library() { return {"9.emulated", ""}; }

}  // namespace shoal::cuda
