// Attention with a cache, for generation.
#include "ops/cuda/attention.cuh"

#include "ops/cuda/cuda_backend.h"

namespace shoal::cuda {
namespace {

constexpr int kCachedThreads = 512, kCachedWarps = kCachedThreads / kWarp;
constexpr int kLanes = 8;                         // that share a key
constexpr int kGroups = kCachedThreads / kLanes;  // of lanes, with a key each
constexpr int kFewChannels = 64;                  // of a head
constexpr float kLowest = -3e38f;  // below every score, and finite: its difference from itself is 0

template <typename T>
struct Cached {
  T *out, *keys, *values;
  const T* qkv;
  const std::int32_t *texts, *positions;
  Heads heads;                    // of one sequence, the rows
  std::int64_t all_texts, block;  // positions of a text

  // Offsets of a head's channels in the caches, and of a row's query in qkv.
  __device__ std::int64_t cache(std::int64_t text, std::int64_t position, std::int64_t h) const {
    return (text * block + position) * heads.out_row() + h * heads.D;
  }
  __device__ std::int64_t query(std::int64_t row, std::int64_t h) const {
    return heads.q(0, h) + row * heads.row();
  }
};

// Prefetches a head of the row's text. The row may not be there yet: then it is an earlier one, or none.
template <typename T>
__device__ void prefetch_head(const Cached<T>& at, std::int64_t row, std::int64_t h) {
  const std::int64_t text = at.texts[row], position = at.positions[row];
  if (text < 0 || text >= at.all_texts || position >= at.block) return;
  for (std::int64_t j = threadIdx.x; j < position; j += blockDim.x) {
    for (std::int64_t d = 0; d < at.heads.D; d += kLine / sizeof(T)) {
      prefetch(at.keys + at.cache(text, j, h) + d);
      prefetch(at.values + at.cache(text, j, h) + d);
    }
  }
}

// One block per row appends its keys and values.
template <typename T>
__global__ void append_kernel(Cached<T> at) {
  const std::int64_t row = blockIdx.x, width = at.heads.out_row(),
                     to = at.cache(at.texts[row], at.positions[row], 0), from = at.query(row, 0);
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    at.keys[to + c] = at.qkv[from + width + c];
    at.values[to + c] = at.qkv[from + 2 * width + c];
  }
}

// One block per head of a row appends and attends. A group of lanes has every kGroups-th key, with a running
// maximum; a lane has kSteps times kEach channels.
template <int kEach, int kSteps, typename T>
__global__ void __launch_bounds__(kCachedThreads) cached_kernel(Cached<T> at) {
  constexpr int kKeys = kSteps * kEach > kFewChannels / kLanes ? 1 : 4;  // of a group, read at once
  __shared__ float sums[kCachedWarps], maxima[kCachedWarps], outs[kCachedWarps][kMostChannels];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            group = static_cast<int>(threadIdx.x) / kLanes, first_channel = lane % kLanes * kEach;
  const std::int64_t row = blockIdx.x / at.heads.H, h = blockIdx.x % at.heads.H, width = at.heads.out_row();
  let_next_start();
  prefetch_head(at, row, h);
  wait_for_earlier();
  const std::int64_t text = at.texts[row], position = at.positions[row], mine = at.query(row, h);
  // Other blocks may not have appended their keys yet: keys from here on are read in qkv.
  std::int64_t fresh = position;
  for (std::int64_t before = row; before > 0 && at.texts[before - 1] == text; --before) --fresh;
  const std::int64_t cached = at.cache(text, 0, h);

  Floats<kEach> q[kSteps], o[kSteps] = {};
  const auto channel = [&](int step) { return step * kLanes * kEach + first_channel; };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    q[step] = channel(step) < at.heads.D ? load<kEach>(at.qkv + mine + channel(step)) : Floats<kEach>{};
  }
  float maximum = kLowest, sum = 0;
  for (std::int64_t begin = 0; begin <= position; begin += kGroups * kKeys) {
    const auto wanted = [&](int n) { return begin + n * kGroups + group; };
    Floats<kEach> k[kKeys][kSteps], v[kKeys][kSteps];
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const std::int64_t j = wanted(n) < position ? wanted(n) : position;  // past the last key, it once more
      const T* key = at.keys + cached + j * width;
      const T* value = at.values + cached + j * width;
      if (j >= fresh) {
        key = at.qkv + mine + ((j - position) * 3 + 1) * width;
        value = key + width;
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const bool there = channel(step) < at.heads.D;
        k[n][step] = there ? load<kEach>(key + channel(step)) : Floats<kEach>{};
        v[n][step] = there ? load<kEach>(value + channel(step)) : Floats<kEach>{};
      }
    }
    float scores[kKeys], most = maximum;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      float score = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) score = fmaf(q[step].at[i], k[n][step].at[i], score);
      }
#pragma unroll
      for (int mask = kLanes / 2; mask > 0; mask /= 2) score += shuffle_xor(score, mask);
      scores[n] = at.heads.scale * score;
      if (wanted(n) <= position) most = fmaxf(most, scores[n]);
    }
    const float rescale = expf(maximum - most);
    maximum = most;
    sum *= rescale;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) o[step].at[i] *= rescale;
    }
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const float p = wanted(n) <= position ? expf(scores[n] - most) : 0.0f;
      sum += p;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) o[step].at[i] = fmaf(p, v[n][step].at[i], o[step].at[i]);
      }
    }
  }
  // The groups of a warp, then the warps of the block.
#pragma unroll
  for (int mask = kLanes; mask < kWarp; mask *= 2) {
    const float most = fmaxf(maximum, shuffle_xor(maximum, mask)), rescale = expf(maximum - most);
    maximum = most;
    sum *= rescale;
    sum += shuffle_xor(sum, mask);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        float& at_channel = o[step].at[i];
        at_channel *= rescale;
        at_channel += shuffle_xor(at_channel, mask);
      }
    }
  }
  if (lane < kLanes) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) outs[warp][channel(step) + i] = o[step].at[i];
    }
    if (lane == 0) sums[warp] = sum, maxima[warp] = maximum;
  }
  __syncthreads();
  float most = maxima[0];
#pragma unroll
  for (int i = 1; i < kCachedWarps; ++i) most = fmaxf(most, maxima[i]);
  const std::int64_t now = cached + position * width;
  for (std::int64_t d = threadIdx.x; d < at.heads.D; d += kCachedThreads) {
    float total = 0, weight = 0;
#pragma unroll
    for (int i = 0; i < kCachedWarps; ++i) {
      const float rescale = expf(maxima[i] - most);
      total += rescale * outs[i][d];
      weight += rescale * sums[i];
    }
    at.out[row * width + h * at.heads.D + d] = narrow<T>(total / weight);
    at.keys[now + d] = at.qkv[mine + width + d];
    at.values[now + d] = at.qkv[mine + 2 * width + d];
  }
}

template <typename T>
auto* kernel_for(const Cached<T>& at) {
  constexpr int kEach = 16 / sizeof(T);
  if (at.heads.D % kEach != 0 || !aligned(at.keys, at.values, at.qkv)) {
    return cached_kernel<1, kMostChannels / kLanes, T>;
  }
  return at.heads.D <= kFewChannels ? cached_kernel<kEach, kFewChannels / kLanes / kEach, T>
                                    : cached_kernel<kEach, kMostChannels / kLanes / kEach, T>;
}

}  // namespace

void CudaBackend::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values,
                                   const Tensor& qkv, const CacheRows& rows) {
  const std::int64_t R = qkv.dim(0), H = qkv.dim(2), D = qkv.dim(3);
  const Tensor sequence = qkv.reshaped({1, R, 3, H, D});
  with_type(qkv.dtype, [&]<typename T>() {
    const Cached<T> at{out.as<T>(),
                       keys.as<T>(),
                       values.as<T>(),
                       qkv.as<T>(),
                       rows.texts.as<std::int32_t>(),
                       rows.positions.as<std::int32_t>(),
                       heads_of(sequence),
                       keys.dim(0),
                       keys.dim(1)};
    if (!rows.prompt) return launch_early(kernel_for(at), blocks(R * H), kCachedThreads, stream_.get(), at);
    launch(append_kernel<T>, blocks(R), kCachedThreads, 0, stream_.get(), at);
    own_attention_forward(out.reshaped({1, R, H, D}), {}, sequence, 0, {});
  });
}

}  // namespace shoal::cuda
