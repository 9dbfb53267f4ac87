// Attention for any type and head: tiles of 32 x 32 scores in shared memory, in float32, or of 16 x 16 where
// a block has no room for those.
#include "ops/cuda/attention.cuh"

namespace shoal::cuda {
namespace {

constexpr int kPlainThreads = 256;
// Rows first to first + kTile - 1 of a head as float32, `D + 1` apart; those past the end are zeros.
template <int kTile, typename T>
__device__ void load_tile(float* to, const T* from, std::int64_t row, std::int64_t first, const Heads& at) {
  const int D = static_cast<int>(at.D);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * D; i += kPlainThreads) {
    const int r = i / D, d = i % D;
    to[r * (D + 1) + d] = first + r < at.T ? widen(from[(first + r) * row + d]) : 0.0f;
  }
}

__device__ float dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// sum over i of weights [i] * tile [i, d]
template <int kTile>
__device__ float column_sum(const float* weights, const float* tile, int d, int stride) {
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < kTile; ++i) sum += weights[i] * tile[i * stride + d];
  return sum;
}

template <int kCount>  // threads
__device__ float row_maximum(float x) {
#pragma unroll
  for (int mask = kCount / 2; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}
template <int kCount>
__device__ float row_sum(float x) {
#pragma unroll
  for (int mask = kCount / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// The shared memory of a kernel: tiles of the head's channels, and of scores.
struct SharedTiles {
  int channels, scores;
  constexpr std::size_t bytes(int tile, std::int64_t D) const {
    return sizeof(float) * static_cast<std::size_t>(channels * tile * (D + 1) + scores * tile * (tile + 1));
  }
};
constexpr SharedTiles kForwardTiles{4, 1}, kQueriesTiles{5, 1}, kKeysTiles{6, 2};

// Calls f<kTile>() for a tile that a block has room for.
template <typename F>
void with_tile(const Heads& at, const SharedTiles& tiles, F&& f) {
  constexpr int kLarge = 32, kSmall = 16;
  constexpr std::size_t kLeast = 99 << 10;  // of compute capability 8.6, 8.9 and 12.0
  static_assert(kKeysTiles.bytes(kSmall, kMostChannels) <= kLeast);
  const auto room = static_cast<std::size_t>(gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  tiles.bytes(kLarge, at.D) <= room ? f.template operator()<kLarge>() : f.template operator()<kSmall>();
}

// One block per tile of queries of a head, kParts threads per query, each with kScores of a tile's keys.
template <typename T, int kTile>
__global__ void __launch_bounds__(kPlainThreads)
    forward_kernel(T* out, float* lse, const T* qkv, Heads at, std::int64_t first_head, Mask mask) {
  constexpr int kParts = kPlainThreads / kTile, kScores = kTile / kParts;
  const int D = static_cast<int>(at.D), stride = D + 1;
  float* q = dynamic_shared<float>();
  float *k = q + kTile * stride, *v = k + kTile * stride, *o = v + kTile * stride, *p = o + kTile * stride;
  const std::int64_t b = blockIdx.x / at.H, h = blockIdx.x % at.H;
  const std::int64_t first = static_cast<std::int64_t>(gridDim.y - 1 - blockIdx.y) * kTile;
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  const std::int64_t i = first + row;
  const std::uint32_t site = head_site(mask, first_head + h), global_row = mask.row(b, i);
  load_tile<kTile>(q, qkv + at.q(b, h), at.row(), first, at);
  for (int d = part; d < D; d += kParts) o[row * stride + d] = 0;
  float maximum = -INFINITY, sum = 0;
  for (std::int64_t begin = 0; begin <= first; begin += kTile) {
    __syncthreads();
    load_tile<kTile>(k, qkv + at.k(b, h), at.row(), begin, at);
    load_tile<kTile>(v, qkv + at.v(b, h), at.row(), begin, at);
    __syncthreads();
    float scores[kScores], most = maximum;
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      const int key = part + n * kParts;
      scores[n] = begin + key <= i ? at.scale * dot(q + row * stride, k + key * stride, D) : -INFINITY;
      most = fmaxf(most, scores[n]);
    }
    most = row_maximum<kParts>(most);
    const float rescale = expf(maximum - most);
    float terms = 0;
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      const int key = part + n * kParts;
      const float probability = expf(scores[n] - most);
      terms += probability;
      const float kept = mask.active
                             ? dropout_factor(mask, site, global_row, static_cast<std::uint32_t>(begin + key))
                             : 1.0f;
      p[row * (kTile + 1) + key] = probability * kept;
    }
    sum = sum * rescale + row_sum<kParts>(terms);
    maximum = most;
    __syncthreads();
    for (int d = part; d < D; d += kParts) {
      float& at_d = o[row * stride + d];
      at_d = at_d * rescale + column_sum<kTile>(p + row * (kTile + 1), v, d, stride);
    }
  }
  if (i >= at.T) return;
  for (int d = part; d < D; d += kParts) {
    out[at.out(b, h) + i * at.out_row() + d] = narrow<T>(o[row * stride + d] / sum);
  }
  if (part == 0 && lse) lse[at.lse(b, h) + i] = maximum + logf(sum);
}

// One block per tile of queries computes their gradient.
template <typename T, int kTile>
__global__ void __launch_bounds__(kPlainThreads)
    queries_kernel(T* dqkv, const T* dout, const float* delta, const float* lse, const T* qkv, Heads at,
                   std::int64_t first_head, Mask mask) {
  constexpr int kParts = kPlainThreads / kTile, kScores = kTile / kParts;
  const int D = static_cast<int>(at.D), stride = D + 1;
  float* q = dynamic_shared<float>();
  float *go = q + kTile * stride, *k = go + kTile * stride, *v = k + kTile * stride, *dq = v + kTile * stride,
        *ds = dq + kTile * stride;
  const std::int64_t b = blockIdx.x / at.H, h = blockIdx.x % at.H;
  const std::int64_t first = static_cast<std::int64_t>(gridDim.y - 1 - blockIdx.y) * kTile;
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  const std::int64_t i = first + row;
  const std::uint32_t site = head_site(mask, first_head + h), global_row = mask.row(b, i);
  const float my_lse = i < at.T ? lse[at.lse(b, h) + i] : INFINITY,
              my_delta = i < at.T ? delta[at.lse(b, h) + i] : 0.0f;
  load_tile<kTile>(q, qkv + at.q(b, h), at.row(), first, at);
  load_tile<kTile>(go, dout + at.out(b, h), at.out_row(), first, at);
  for (int d = part; d < D; d += kParts) dq[row * stride + d] = 0;
  for (std::int64_t begin = 0; begin <= first; begin += kTile) {
    __syncthreads();
    load_tile<kTile>(k, qkv + at.k(b, h), at.row(), begin, at);
    load_tile<kTile>(v, qkv + at.v(b, h), at.row(), begin, at);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      const int key = part + n * kParts;
      float slope = 0;
      if (begin + key <= i) {
        const float p = expf(at.scale * dot(q + row * stride, k + key * stride, D) - my_lse);
        const float kept =
            mask.active ? dropout_factor(mask, site, global_row, static_cast<std::uint32_t>(begin + key))
                        : 1.0f;
        slope = p * (kept * dot(go + row * stride, v + key * stride, D) - my_delta) * at.scale;
      }
      ds[row * (kTile + 1) + key] = slope;
    }
    __syncthreads();
    for (int d = part; d < D; d += kParts) {
      dq[row * stride + d] += column_sum<kTile>(ds + row * (kTile + 1), k, d, stride);
    }
  }
  if (i >= at.T) return;
  for (int d = part; d < D; d += kParts) {
    dqkv[at.q(b, h) + i * at.row() + d] = narrow<T>(dq[row * stride + d]);
  }
}

// One block per tile of keys computes their gradient and that of the values.
template <typename T, int kTile>
__global__ void __launch_bounds__(kPlainThreads)
    keys_kernel(T* dqkv, const T* dout, const float* delta, const float* lse, const T* qkv, Heads at,
                std::int64_t first_head, Mask mask) {
  constexpr int kParts = kPlainThreads / kTile, kScores = kTile / kParts;
  const int D = static_cast<int>(at.D), stride = D + 1;
  float* k = dynamic_shared<float>();
  float *v = k + kTile * stride, *q = v + kTile * stride, *go = q + kTile * stride, *dk = go + kTile * stride,
        *dv = dk + kTile * stride, *p = dv + kTile * stride, *ds = p + kTile * (kTile + 1);
  const std::int64_t b = blockIdx.x / at.H, h = blockIdx.x % at.H;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  const std::int64_t j = first + row;
  const std::uint32_t site = head_site(mask, first_head + h);
  load_tile<kTile>(k, qkv + at.k(b, h), at.row(), first, at);
  load_tile<kTile>(v, qkv + at.v(b, h), at.row(), first, at);
  for (int d = part; d < D; d += kParts) dk[row * stride + d] = dv[row * stride + d] = 0;
  for (std::int64_t begin = first; begin < at.T; begin += kTile) {
    __syncthreads();
    load_tile<kTile>(q, qkv + at.q(b, h), at.row(), begin, at);
    load_tile<kTile>(go, dout + at.out(b, h), at.out_row(), begin, at);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      const int query = part + n * kParts;
      const std::int64_t i = begin + query;
      float weight = 0, slope = 0;
      if (j <= i && i < at.T) {
        const float probability =
            expf(at.scale * dot(q + query * stride, k + row * stride, D) - lse[at.lse(b, h) + i]);
        const float kept =
            mask.active ? dropout_factor(mask, site, mask.row(b, i), static_cast<std::uint32_t>(j)) : 1.0f;
        weight = probability * kept;
        slope = probability *
                (kept * dot(go + query * stride, v + row * stride, D) - delta[at.lse(b, h) + i]) * at.scale;
      }
      p[row * (kTile + 1) + query] = weight;
      ds[row * (kTile + 1) + query] = slope;
    }
    __syncthreads();
    for (int d = part; d < D; d += kParts) {
      dv[row * stride + d] += column_sum<kTile>(p + row * (kTile + 1), go, d, stride);
      dk[row * stride + d] += column_sum<kTile>(ds + row * (kTile + 1), q, d, stride);
    }
  }
  if (j >= at.T) return;
  for (int d = part; d < D; d += kParts) {
    dqkv[at.k(b, h) + j * at.row() + d] = narrow<T>(dk[row * stride + d]);
    dqkv[at.v(b, h) + j * at.row() + d] = narrow<T>(dv[row * stride + d]);
  }
}

}  // namespace

template <typename T>
void plain_attention_forward(const ForwardCall& call, cudaStream_t stream) {
  const Heads& at = call.heads;
  with_tile(at, kForwardTiles, [&]<int kTile>() {
    launch(forward_kernel<T, kTile>, blocks(at.B * at.H, ceil_div(at.T, kTile)), kPlainThreads,
           kForwardTiles.bytes(kTile, at.D), stream, static_cast<T*>(call.out), call.lse,
           static_cast<const T*>(call.qkv), at, call.first_head, call.mask);
  });
}

template <typename T>
void plain_attention_backward(const BackwardCall& call, cudaStream_t stream) {
  const Heads& at = call.heads;
  with_tile(at, kKeysTiles, [&]<int kTile>() {  // the larger of the two
    const auto run = [&](auto kernel, const SharedTiles& tiles) {
      launch(kernel, blocks(at.B * at.H, ceil_div(at.T, kTile)), kPlainThreads, tiles.bytes(kTile, at.D),
             stream, static_cast<T*>(call.dqkv), static_cast<const T*>(call.dout), call.delta, call.lse,
             static_cast<const T*>(call.qkv), at, call.first_head, call.mask);
    };
    run(queries_kernel<T, kTile>, kQueriesTiles);
    run(keys_kernel<T, kTile>, kKeysTiles);
  });
}

template void plain_attention_forward<float>(const ForwardCall&, cudaStream_t);
template void plain_attention_forward<bfloat16>(const ForwardCall&, cudaStream_t);
template void plain_attention_backward<float>(const BackwardCall&, cudaStream_t);
template void plain_attention_backward<bfloat16>(const BackwardCall&, cudaStream_t);

}  // namespace shoal::cuda
