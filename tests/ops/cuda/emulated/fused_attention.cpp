// Stands in for cuDNN's attention with the plain kernels, so that wrong requests and arguments are noticed.
#include "ops/cuda/fused_attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/dtype.h"
#include "ops/cuda/attention.cuh"
#include "ops/cuda/emulated/stream.h"

namespace shoal::cuda {
namespace {

Heads heads_of(const AttentionSizes& at) {
  return {at.B, at.T, at.H, at.D, 1 / std::sqrt(static_cast<float>(at.D))};
}

class PlainInstead final : public FusedAttention {
 public:
  explicit PlainInstead(cudaStream_t stream) : stream_(stream) {}

  bool forward(const AttentionSizes& sizes, void* out, float* lse, const void* qkv) override {
    if (!can(sizes)) return false;
    plain_attention_forward<bfloat16>({out, lse, qkv, heads_of(sizes), 0, Mask(Dropout{})}, stream_);
    return true;
  }

  bool backward(const AttentionSizes& sizes, void* dqkv, const void* dout, const void* out, const float* lse,
                const void* qkv) override {
    if (!can(sizes)) return false;
    const Heads at = heads_of(sizes);
    const auto delta = std::make_shared<std::vector<float>>(static_cast<std::size_t>(at.B * at.H * at.T));
    emulated::queue(stream_, [=] {
      std::fill(delta->begin(), delta->end(), 0.0f);
      const auto *of_out = static_cast<const bfloat16*>(out), *of_dout = static_cast<const bfloat16*>(dout);
      for (std::int64_t i = 0; i < at.B * at.T * at.H * at.D; ++i) {
        const std::int64_t h = i / at.D % at.H, t = i / at.D / at.H % at.T, b = i / at.D / at.H / at.T;
        (*delta)[static_cast<std::size_t>(at.lse(b, h) + t)] += to_float(of_out[i]) * to_float(of_dout[i]);
      }
    });
    plain_attention_backward<bfloat16>({dqkv, dout, delta->data(), lse, qkv, at, 0, Mask(Dropout{})},
                                       stream_);
    emulated::queue(stream_, [delta] {});  // keeps it until then
    return true;
  }

  std::string why_not() const override { return "the emulated library takes no heads of 40 channels"; }

 private:
  static bool can(const AttentionSizes& sizes) { return sizes.D != 40; }

  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(cudaStream_t stream, KernelScratch&, bool) {
  return std::make_unique<PlainInstead>(stream);
}

AttentionLibrary fused_attention_library() { return {"9.emulated", ""}; }

}  // namespace shoal::cuda
