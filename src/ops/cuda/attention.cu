// The choice among the kernels of attention, dout . out, and attention with a cache.
#include "ops/cuda/attention.cuh"

#include <cmath>

#include "ops/cuda/cuda_backend.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr std::int64_t kMostChannels = 192;  // of a head, in cached_kernel's arrays

// delta [b, h, t] = dout . out. One warp per head of a position.
template <typename T>
__global__ void delta_kernel(float* delta, const T* dout, const T* out, Heads at) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t which = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (which >= at.B * at.T * at.H) return;
  float sum = 0;
  for (std::int64_t d = lane; d < at.D; d += kWarp)
    sum += widen(dout[which * at.D + d]) * widen(out[which * at.D + d]);
  sum = warp_sum(sum);
  const std::int64_t h = which % at.H, t = which / at.H % at.T, b = which / at.H / at.T;
  if (lane == 0) delta[at.lse(b, h) + t] = sum;
}

// --- generation

constexpr int kEach = kMostChannels / kWarp;  // channels of a lane

template <typename T>
__global__ void append_kernel(T* keys, T* values, const T* qkv, std::int64_t width, std::int64_t past) {
  const std::int64_t t = blockIdx.x;
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    keys[(past + t) * width + c] = qkv[(3 * t + 1) * width + c];
    values[(past + t) * width + c] = qkv[(3 * t + 2) * width + c];
  }
}

// One block per head of a position; each warp takes every kWarps-th key, with a running maximum.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    cached_kernel(T* out, const T* keys, const T* values, const T* qkv, Heads at, std::int64_t past) {
  __shared__ float sums[kWarps], maxima[kWarps], outs[kWarps][kMostChannels];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t t = blockIdx.x / at.H, h = blockIdx.x % at.H, width = at.H * at.D;
  const T* query = qkv + 3 * t * width + h * at.D;
  float q[kEach], o[kEach] = {};
#pragma unroll
  for (int e = 0; e < kEach; ++e) q[e] = lane + e * kWarp < at.D ? widen(query[lane + e * kWarp]) : 0.0f;
  float maximum = -INFINITY, sum = 0;
  for (std::int64_t j = warp; j <= past + t; j += kWarps) {
    const std::int64_t row = j * width + h * at.D;
    float score = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (lane + e * kWarp < at.D) score += q[e] * widen(keys[row + lane + e * kWarp]);
    }
    score = at.scale * warp_sum(score);
    const float most = fmaxf(maximum, score), rescale = expf(maximum - most), p = expf(score - most);
    sum = sum * rescale + p;
    maximum = most;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (lane + e * kWarp < at.D) o[e] = o[e] * rescale + p * widen(values[row + lane + e * kWarp]);
    }
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) outs[warp][lane + e * kWarp] = o[e];
  if (lane == 0) sums[warp] = sum, maxima[warp] = maximum;
  __syncthreads();
  float most = maxima[0];
  for (int i = 1; i < kWarps; ++i) most = fmaxf(most, maxima[i]);
  for (std::int64_t d = threadIdx.x; d < at.D; d += kThreads) {
    float total = 0, weight = 0;
    for (int i = 0; i < kWarps; ++i) {
      const float rescale = expf(maxima[i] - most);
      total += rescale * outs[i][d];
      weight += rescale * sums[i];
    }
    out[t * width + h * at.D + d] = narrow<T>(total / weight);
  }
}

Heads heads_of(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t D) {
  check_head(D, kMostChannels);
  return {B, T, H, D, 1 / std::sqrt(static_cast<float>(D))};
}
bool may_be_fast(const CudaOptions& options, const Tensor& qkv) {
  return options.attention != AttentionKind::plain && qkv.dtype == DType::bf16 && qkv.dim(4) == kTensorHead;
}

Heads heads_of(const Tensor& qkv) { return heads_of(qkv.dim(0), qkv.dim(1), qkv.dim(3), qkv.dim(4)); }

}  // namespace

void CudaBackend::attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                    std::int64_t first_head, const Dropout& dropout) {
  const auto fused = [&](FusedAttention& library, const AttentionSizes& sizes) {
    return library.forward(sizes, out.data, lse.as<float>(), qkv.data);
  };
  if (by_library(qkv, dropout, aligned(qkv.data, out.data), fused)) return;
  const ForwardCall call{out.data, lse.as<float>(), qkv.data, heads_of(qkv), first_head, Mask(dropout)};
  const bool fast = may_be_fast(options_, qkv) && aligned(qkv.data, out.data);
  if (fast) return tensor_attention_forward(call, scratch_, stream_.get());
  with_type(qkv.dtype, [&]<typename T>() { plain_attention_forward<T>(call, stream_.get()); });
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
  const bool fast = may_be_fast(options_, qkv) && aligned(qkv.data, dout.data, dqkv.data, out.data);
  if (fast) return tensor_attention_backward(call, scratch_, stream_.get());
  auto* delta = scratch_.take<float>(heads.B * heads.H * heads.T);
  with_type(out.dtype, [&]<typename T>() {
    launch(delta_kernel<T>, blocks(ceil_div(heads.B * heads.T * heads.H, kWarps)), kThreads, 0, stream_.get(),
           delta, dout.as<T>(), out.as<T>(), heads);
  });
  call.delta = delta;
  with_type(qkv.dtype, [&]<typename T>() { plain_attention_backward<T>(call, stream_.get()); });
}

void CudaBackend::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values,
                                   const Tensor& qkv, std::int64_t past) {
  const std::int64_t positions = qkv.dim(0);
  const Heads at = heads_of(1, positions, qkv.dim(2), qkv.dim(3));
  with_type(qkv.dtype, [&]<typename T>() {
    launch(append_kernel<T>, blocks(positions), kThreads, 0, stream_.get(), keys.as<T>(), values.as<T>(),
           qkv.as<T>(), at.H * at.D, past);
    launch(cached_kernel<T>, blocks(positions * at.H), kThreads, 0, stream_.get(), out.as<T>(), keys.as<T>(),
           values.as<T>(), qkv.as<T>(), at, past);
  });
}

}  // namespace shoal::cuda
