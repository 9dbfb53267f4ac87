// The choice among the kernels of attention, and dout . out.
#include "ops/cuda/attention.cuh"

#include <cmath>

#include "ops/cuda/cuda_backend.h"

namespace shoal::cuda {
namespace {

constexpr int kDeltaThreads = 128, kDeltaWarps = kDeltaThreads / kWarp;

// delta [b, h, t] = dout . out. One warp per head of a position.
template <typename T>
__global__ void delta_kernel(float* delta, const T* dout, const T* out, Heads at) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t which = static_cast<std::int64_t>(blockIdx.x) * kDeltaWarps + threadIdx.x / kWarp;
  if (which >= at.B * at.T * at.H) return;
  float sum = 0;
  for (std::int64_t d = lane; d < at.D; d += kWarp)
    sum += widen(dout[which * at.D + d]) * widen(out[which * at.D + d]);
  sum = warp_sum(sum);
  const std::int64_t h = which % at.H, t = which / at.H % at.T, b = which / at.H / at.T;
  if (lane == 0) delta[at.lse(b, h) + t] = sum;
}

bool may_be_fast(const CudaOptions& options, DType type, const Heads& heads) {
  return options.attention != AttentionKind::plain && type == DType::bf16 && heads.D == kTensorHead;
}

}  // namespace

Heads heads_of(const Tensor& qkv) {
  const std::int64_t D = qkv.dim(4);
  check_head(D, kMostChannels);
  return {qkv.dim(0), qkv.dim(1), qkv.dim(3), D, 1 / std::sqrt(static_cast<float>(D))};
}

void CudaBackend::own_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                        std::int64_t first_head, const Dropout& dropout) {
  const ForwardCall call{out.data, lse.as<float>(), qkv.data, heads_of(qkv), first_head, Mask(dropout)};
  const bool fast = may_be_fast(options_, qkv.dtype, call.heads) && aligned(qkv.data, out.data);
  if (fast) return tensor_attention_forward(call, scratch_, stream_.get());
  with_type(qkv.dtype, [&]<typename T>() { plain_attention_forward<T>(call, stream_.get()); });
}

void CudaBackend::attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                    std::int64_t first_head, const Dropout& dropout) {
  const auto fused = [&](FusedAttention& library, const AttentionSizes& sizes) {
    return library.forward(sizes, out.data, lse.as<float>(), qkv.data);
  };
  if (by_library(qkv, dropout, aligned(qkv.data, out.data), fused)) return;
  own_attention_forward(out, lse, qkv, first_head, dropout);
}

void CudaBackend::attention_backward(const AttentionBackward& args) {
  const auto& [dqkv, dout, out, lse, qkv, first_head, dropout] = args;
  const auto fused = [&](FusedAttention& library, const AttentionSizes& sizes) {
    return library.backward(sizes, dqkv.data, dout.data, out.data, lse.as<float>(), qkv.data);
  };
  if (by_library(qkv, dropout, aligned(qkv.data, dqkv.data, dout.data, out.data), fused)) return;
  const Heads heads = heads_of(qkv);
  BackwardCall call{dqkv.data, dout.data,  nullptr,       lse.as<float>(), qkv.data,
                    heads,     first_head, Mask(dropout), out.data};
  const bool fast =
      may_be_fast(options_, qkv.dtype, heads) && aligned(qkv.data, dout.data, dqkv.data, out.data);
  if (fast) return tensor_attention_backward(call, scratch_, stream_.get());
  auto* delta = scratch_.take<float>(heads.B * heads.H * heads.T);
  with_type(out.dtype, [&]<typename T>() {
    launch(delta_kernel<T>, blocks(ceil_div(heads.B * heads.T * heads.H, kDeltaWarps)), kDeltaThreads, 0,
           stream_.get(), delta, dout.as<T>(), out.as<T>(), heads);
  });
  call.delta = delta;
  with_type(qkv.dtype, [&]<typename T>() { plain_attention_backward<T>(call, stream_.get()); });
}

}  // namespace shoal::cuda
