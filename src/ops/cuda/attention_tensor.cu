// Attention on tensor cores: bfloat16, 64 channels a head, tiles of 64 x 64.
//
// A warp has 16 rows (queries, or keys in the gradients of keys and values) of a tile and all its columns. As
// accumulators of a product its elements are float [8][4]: in the 8 columns from 8 n on, lane = 4 g + t has
// [n][0], [n][1] of row g at columns 2 t, 2 t + 1, and [n][2], [n][3] of row g + 8. As the left operand of
// the next product they are the same registers rounded and packed, uint32 [4][4]: 16 columns each.
#include "ops/cuda/attention.cuh"

namespace shoal::cuda {
namespace {

constexpr int kHead = static_cast<int>(kTensorHead), kTile = 64, kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kRows = 16;                            // of a warp
constexpr int kChunk = 8, kChunks = kHead / kChunk;  // 16 bytes, copied and loaded at once
constexpr int kRowBytes = kHead * static_cast<int>(sizeof(bfloat16));
constexpr SharedAddress kTileBytes = kTile * kRowBytes;
constexpr float kLog2E = 1.4426950408889634f;
static_assert(kTile == kWarps * kRows && kTile == kHead);

using Sums = float[8][4];             // 16 x 64 as accumulators
using Operand = std::uint32_t[4][4];  // 16 x 64 as a left operand

struct Lane {
  int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int g = lane / 4, t = lane % 4;
};

// A tile in shared memory is [64][64]; the chunks of a row are permuted by its last three bits, so that eight
// rows' chunks of one column stand in all banks. 2 k chunks on from an even one is a change of two bits,
// which leaves one address per lane and constants.
__device__ SharedAddress chunk_of(int row, int chunk) {
  return static_cast<SharedAddress>(row * kRowBytes + (chunk ^ (row % 8)) * 16);
}
__device__ SharedAddress moved(SharedAddress address, int rows, int chunk_pairs) {
  return static_cast<SharedAddress>(rows * kRowBytes) +
         (address ^ static_cast<SharedAddress>(chunk_pairs * 32));
}

// Rows first to first + 63 of a head; zeros past the end.
__device__ void copy_tile(SharedAddress tile, const bfloat16* from, std::int64_t row_stride, int first,
                          int end) {
#pragma unroll
  for (int n = 0; n < kTile * kChunks / kThreads; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads, row = i / kChunks, chunk = i % kChunks;
    const bool there = first + row < end;
    copy_async(tile + chunk_of(row, chunk), from + (there ? first + row : 0) * row_stride + chunk * kChunk,
               there);
  }
}

// Rows `first` to first + 15 of a tile as a left operand.
__device__ void load_operand(Operand& a, SharedAddress tile, int first, const Lane& at) {
  const SharedAddress mine = chunk_of(at.lane % 16, at.lane / 16);
#pragma unroll
  for (int k = 0; k < 4; ++k) load_matrices(a[k], tile + moved(mine, first, k));
}

// c [16, 64] += a [16, 64] . tile^T
template <int kM>
__device__ void multiply_by_rows(Sums (&c)[kM], const Operand (&a)[kM], SharedAddress tile, const Lane& at) {
  const SharedAddress mine = chunk_of(at.lane / 16 * 8 + at.lane % 8, at.lane / 8 % 2);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t b[4];
      load_matrices(b, tile + moved(mine, 16 * n, k));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(c[m][2 * n], a[m][k], b[0], b[1]);
        multiply_add(c[m][2 * n + 1], a[m][k], b[2], b[3]);
      }
    }
  }
}

// c [16, 64] += a [16, 64] . tile
template <int kM>
__device__ void multiply_by_columns(Sums (&c)[kM], const Operand (&a)[kM], SharedAddress tile,
                                    const Lane& at) {
  const SharedAddress mine = chunk_of(at.lane % 16, at.lane / 16);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      std::uint32_t b[4];
      load_matrices_transposed(b, tile + moved(mine, 16 * k, n));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(c[m][2 * n], a[m][k], b[0], b[1]);
        multiply_add(c[m][2 * n + 1], a[m][k], b[2], b[3]);
      }
    }
  }
}

__device__ void round_operand(Operand& a, const Sums& x) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    a[k][0] = pack_bfloat16(x[2 * k][0], x[2 * k][1]);
    a[k][1] = pack_bfloat16(x[2 * k][2], x[2 * k][3]);
    a[k][2] = pack_bfloat16(x[2 * k + 1][0], x[2 * k + 1][1]);
    a[k][3] = pack_bfloat16(x[2 * k + 1][2], x[2 * k + 1][3]);
  }
}

// Writes rows of x, scaled, to a head's rows before `end`.
__device__ void store_rows(bfloat16* to, std::int64_t row_stride, int first, int end, const Sums& x,
                           const float (&scale)[2], const Lane& at) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + at.g + 8 * r;
    if (row >= end) continue;
    auto* pairs = reinterpret_cast<std::uint32_t*>(to + row * row_stride);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      pairs[4 * n + at.t] = pack_bfloat16(x[n][2 * r] * scale[r], x[n][2 * r + 1] * scale[r]);
    }
  }
}

// Multiplies the scores of two rows at the 64 keys from `begin` on by their dropout factors. A Philox block
// covers the keys of equal remainder mod 16 among 128; these 64 keys are half of them.
__device__ void drop(Sums& x, const Mask& mask, std::uint32_t site, const std::uint32_t (&rows)[2], int begin,
                     const Lane& at) {
  const bool upper = begin % 128 != 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto remainder = static_cast<std::uint32_t>(8 * half + 2 * at.t + e);
        const Words words = philox_words(mask.key, static_cast<std::uint32_t>(begin / 128 * 16) + remainder,
                                         rows[r], site, *mask.step);
        const std::uint32_t pairs[2] = {upper ? words.at[2] : words.at[0], upper ? words.at[3] : words.at[1]};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const std::uint32_t bits = pairs[k / 2] >> (16 * (k % 2)) & 0xffffu;
          x[2 * k + half][2 * r + e] *= bits < mask.threshold ? 0.0f : mask.scale;
        }
      }
    }
  }
}

__device__ float over_row(float x, float (*fold)(float, float)) {
  x = fold(x, shuffle_xor(x, 1));
  return fold(x, shuffle_xor(x, 2));
}
__device__ float add_of(float a, float b) { return a + b; }
__device__ float maximum_of(float a, float b) { return fmaxf(a, b); }

// --- forward

// One tile of keys for 16 queries: scores become probabilities relative to the maximum so far, and sums and
// outputs so far are rescaled to it.
__device__ void online_softmax(Sums& s, Sums& o, float (&maximum)[2], float (&sum)[2], float factor) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    most = fmaxf(maximum[r], over_row(most, maximum_of));
    const float rescale = fast_exp2((maximum[r] - most) * factor), shift = most * factor;
    maximum[r] = most;
    sum[r] *= rescale;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * r + e];
        x = fast_exp2(fmaf(x, factor, -shift));
        sum[r] += x;
        o[n][2 * r + e] *= rescale;
      }
    }
  }
}

// One block per 64 kM queries of a head; a warp has kM times 16 of them.
template <int kM, bool kDropout>
__global__ void __launch_bounds__(kThreads) forward_kernel(bfloat16* out, float* lse, const bfloat16* qkv,
                                                           Heads at, std::int64_t first_head, Mask mask) {
  constexpr int kQueries = kTile * kM;
  const SharedAddress queries = shared_address(dynamic_shared<bfloat16>());  // kM tiles
  const SharedAddress tiles = queries + kM * kTileBytes;                     // keys and values, two of each
  const Lane lane;
  const std::int64_t b = blockIdx.x / at.H, h = blockIdx.x % at.H;
  const int T = static_cast<int>(at.T), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int end = first + kQueries < T ? first + kQueries : T;  // of the keys, too
  const int my_first = lane.warp * kRows * kM;
  const std::uint32_t site = head_site(mask, first_head + h);
  const auto copy = [&](int begin) {
    const SharedAddress buffer = tiles + begin / kTile % 2 * 2 * kTileBytes;
    copy_tile(buffer, qkv + at.k(b, h), at.row(), begin, T);
    copy_tile(buffer + kTileBytes, qkv + at.v(b, h), at.row(), begin, T);
    commit_copies();
  };
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    copy_tile(queries + m * kTileBytes, qkv + at.q(b, h), at.row(), first + m * kTile, T);
  }
  copy(0);

  Operand q[kM];
  Sums o[kM] = {};
  float maximum[kM][2], sum[kM][2] = {};
#pragma unroll
  for (int m = 0; m < kM; ++m) maximum[m][0] = maximum[m][1] = -INFINITY;
  const float factor = at.scale * kLog2E;
  for (int begin = 0; begin < end; begin += kTile) {
    if (begin + kTile < end) {
      copy(begin + kTile);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const SharedAddress keys = tiles + begin / kTile % 2 * 2 * kTileBytes;
    if (begin == 0) {
#pragma unroll
      for (int m = 0; m < kM; ++m) load_operand(q[m], queries, my_first + m * kRows, lane);
    }
    if (begin <= first + my_first + kM * kRows - 1) {  // otherwise these queries see none of the keys
      Sums s[kM] = {};
      multiply_by_rows(s, q, keys, lane);
      Operand p[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const int row = first + my_first + m * kRows + lane.g;
        if (begin + kTile - 1 > first + my_first + m * kRows) {
#pragma unroll
          for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              if (begin + 8 * n + 2 * lane.t + e % 2 > row + e / 2 * 8) s[m][n][e] = -INFINITY;
            }
          }
        }
        online_softmax(s[m], o[m], maximum[m], sum[m], factor);
        if constexpr (kDropout) drop(s[m], mask, site, {mask.row(b, row), mask.row(b, row + 8)}, begin, lane);
        round_operand(p[m], s[m]);
      }
      multiply_by_columns(o, p, keys + kTileBytes, lane);
    }
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int row = first + my_first + m * kRows;
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = over_row(sum[m][r], add_of);
      inverse[r] = 1.0f / total;
      const int i = row + lane.g + 8 * r;
      if (lane.t == 0 && i < T) lse[at.lse(b, h) + i] = maximum[m][r] * at.scale + logf(total);
    }
    store_rows(out + at.out(b, h), at.out_row(), row, T, o[m], inverse, lane);
  }
}

// --- backward

// One block per 64 queries of a head computes their gradient.
template <bool kDropout>
__global__ void __launch_bounds__(kThreads)
    queries_kernel(bfloat16* dqkv, const bfloat16* dout, const float* delta, const float* lse,
                   const bfloat16* qkv, Heads at, std::int64_t first_head, Mask mask) {
  const SharedAddress queries = shared_address(dynamic_shared<bfloat16>());
  const SharedAddress douts = queries + kTileBytes;
  const SharedAddress tiles = douts + kTileBytes;  // keys and values, two of each
  const Lane lane;
  const std::int64_t b = blockIdx.x / at.H, h = blockIdx.x % at.H;
  const int T = static_cast<int>(at.T), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kTile;
  const int end = first + kTile < T ? first + kTile : T;
  const int my_first = lane.warp * kRows;
  const int row = first + my_first + lane.g;  // and 8 more
  const std::uint32_t site = head_site(mask, first_head + h);
  const auto copy = [&](int begin) {
    const SharedAddress buffer = tiles + begin / kTile % 2 * 2 * kTileBytes;
    copy_tile(buffer, qkv + at.k(b, h), at.row(), begin, T);
    copy_tile(buffer + kTileBytes, qkv + at.v(b, h), at.row(), begin, T);
    commit_copies();
  };
  copy_tile(queries, qkv + at.q(b, h), at.row(), first, T);
  copy_tile(douts, dout + at.out(b, h), at.out_row(), first, T);
  copy(0);

  // Past the end the probability is 2^-inf.
  float my_lse[2], my_delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool there = row + 8 * r < T;
    my_lse[r] = there ? lse[at.lse(b, h) + row + 8 * r] * kLog2E : INFINITY;
    my_delta[r] = there ? delta[at.lse(b, h) + row + 8 * r] : 0.0f;
  }
  Operand q[1], go[1];
  Sums dq[1] = {};
  const float factor = at.scale * kLog2E;
  for (int begin = 0; begin < end; begin += kTile) {
    if (begin + kTile < end) {
      copy(begin + kTile);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const SharedAddress keys = tiles + begin / kTile % 2 * 2 * kTileBytes;
    if (begin == 0) {
      load_operand(q[0], queries, my_first, lane);
      load_operand(go[0], douts, my_first, lane);
    }
    Sums s[1] = {}, dp[1] = {};
    multiply_by_rows(s, q, keys, lane);
    multiply_by_rows(dp, go, keys + kTileBytes, lane);
    if constexpr (kDropout) drop(dp[0], mask, site, {mask.row(b, row), mask.row(b, row + 8)}, begin, lane);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e / 2;
        const bool seen = begin < first || begin + 8 * n + 2 * lane.t + e % 2 <= row + 8 * r;
        const float p = seen ? fast_exp2(fmaf(s[0][n][e], factor, -my_lse[r])) : 0.0f;
        s[0][n][e] = p * (dp[0][n][e] - my_delta[r]) * at.scale;
      }
    }
    Operand ds[1];
    round_operand(ds[0], s[0]);
    multiply_by_columns(dq, ds, keys, lane);
    __syncthreads();
  }
  store_rows(dqkv + at.q(b, h), at.row(), first + my_first, T, dq[0], {1.0f, 1.0f}, lane);
}

// One block per 64 keys of a head computes their gradient and that of the values. Scores are transposed here:
// a row is a key, a column a query.
template <bool kDropout>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(bfloat16* dqkv, const bfloat16* dout, const float* delta, const float* lse,
                const bfloat16* qkv, Heads at, std::int64_t first_head, Mask mask) {
  const SharedAddress keys = shared_address(dynamic_shared<bfloat16>());
  const SharedAddress values = keys + kTileBytes;
  const SharedAddress tiles = values + kTileBytes;  // queries and the outputs' gradients, two of each
  __shared__ float lses[2][kTile], deltas[2][kTile];
  const Lane lane;
  const std::int64_t b = blockIdx.x / at.H, h = blockIdx.x % at.H;
  const int T = static_cast<int>(at.T), first = static_cast<int>(blockIdx.y) * kTile;
  const int my_first = lane.warp * kRows;
  const int key = first + my_first + lane.g;  // and 8 more
  const std::uint32_t site = head_site(mask, first_head + h);
  const auto copy = [&](int begin) {
    const int which = begin / kTile % 2;
    const SharedAddress buffer = tiles + which * 2 * kTileBytes;
    copy_tile(buffer, qkv + at.q(b, h), at.row(), begin, T);
    copy_tile(buffer + kTileBytes, dout + at.out(b, h), at.out_row(), begin, T);
    commit_copies();
    // Past the end the probability is 2^-inf.
    const int i = static_cast<int>(threadIdx.x) % kTile;
    const bool there = begin + i < T;
    if (threadIdx.x < kTile) {
      lses[which][i] = there ? lse[at.lse(b, h) + begin + i] * kLog2E : INFINITY;
    } else {
      deltas[which][i] = there ? delta[at.lse(b, h) + begin + i] : 0.0f;
    }
  };
  copy_tile(keys, qkv + at.k(b, h), at.row(), first, T);
  copy_tile(values, qkv + at.v(b, h), at.row(), first, T);
  copy(first);

  Operand k[1], v[1];
  Sums dk[1] = {}, dv[1] = {};
  const float factor = at.scale * kLog2E;
  for (int begin = first; begin < T; begin += kTile) {
    if (begin + kTile < T) {
      copy(begin + kTile);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const int which = begin / kTile % 2;
    const SharedAddress queries = tiles + which * 2 * kTileBytes;
    if (begin == first) {
      load_operand(k[0], keys, my_first, lane);
      load_operand(v[0], values, my_first, lane);
    }
    Sums s[1] = {}, dp[1] = {};
    multiply_by_rows(s, k, queries, lane);
    multiply_by_rows(dp, v, queries + kTileBytes, lane);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 8 * n + 2 * lane.t + e % 2;
        const int my_key = key + e / 2 * 8;
        const bool seen = begin > first || my_key <= begin + column;
        const float p = seen ? fast_exp2(fmaf(s[0][n][e], factor, -lses[which][column])) : 0.0f;
        float kept = 1;
        if constexpr (kDropout) {
          kept = dropout_factor(mask, site, mask.row(b, begin + column), static_cast<std::uint32_t>(my_key));
        }
        s[0][n][e] = p * kept;
        dp[0][n][e] = p * (kept * dp[0][n][e] - deltas[which][column]) * at.scale;
      }
    }
    Operand p[1], ds[1];
    round_operand(p[0], s[0]);
    multiply_by_columns(dv, p, queries + kTileBytes, lane);
    round_operand(ds[0], dp[0]);
    multiply_by_columns(dk, ds, queries, lane);
    __syncthreads();
  }
  store_rows(dqkv + at.k(b, h), at.row(), first + my_first, T, dk[0], {1.0f, 1.0f}, lane);
  store_rows(dqkv + at.v(b, h), at.row(), first + my_first, T, dv[0], {1.0f, 1.0f}, lane);
}

constexpr std::size_t tiles_bytes(int tiles) { return static_cast<std::size_t>(tiles) * kTileBytes; }

}  // namespace

void tensor_attention_forward(const ForwardCall& call, cudaStream_t stream) {
  const Heads& at = call.heads;
  const auto run = [&](auto kernel, int tiles) {
    launch(kernel, blocks(at.B * at.H, ceil_div(at.T, tiles * kTile)), kThreads, tiles_bytes(4 + tiles),
           stream, static_cast<bfloat16*>(call.out), call.lse, static_cast<const bfloat16*>(call.qkv), at,
           call.first_head, call.mask);
  };
  call.mask.active ? run(forward_kernel<2, true>, 2) : run(forward_kernel<2, false>, 2);
}

void tensor_attention_backward(const BackwardCall& call, cudaStream_t stream) {
  const Heads& at = call.heads;
  const auto run = [&](auto kernel) {
    launch(kernel, blocks(at.B * at.H, ceil_div(at.T, kTile)), kThreads, tiles_bytes(6), stream,
           static_cast<bfloat16*>(call.dqkv), static_cast<const bfloat16*>(call.dout), call.delta, call.lse,
           static_cast<const bfloat16*>(call.qkv), at, call.first_head, call.mask);
  };
  call.mask.active ? run(queries_kernel<true>) : run(queries_kernel<false>);
  call.mask.active ? run(keys_kernel<true>) : run(keys_kernel<false>);
}

}  // namespace shoal::cuda
