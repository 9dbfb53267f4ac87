// Attention on tensor cores: bfloat16, 64 channels a head, tiles of 64 x 64.
//
// A warp has 16 rows (queries, or keys in the gradients of keys and values) of a tile and all its columns. As
// accumulators of a product its elements are float [8][4]: in the 8 columns from 8 n on, lane = 4 g + t has
// [n][0], [n][1] of row g at columns 2 t, 2 t + 1, and [n][2], [n][3] of row g + 8. As the left operand of
// the next product they are the same registers rounded and packed, uint32 [4][4]: 16 columns each.
#include <algorithm>

#include "ops/cuda/attention.cuh"
#include "ops/cuda/cuda.h"

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
using HalfSums = float[4][4];         // the same of 32 columns
using HalfOperand = std::uint32_t[2][4];
constexpr int kHalf = kTile / 2;

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
  const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
  const bfloat16* mine =
      from + static_cast<std::int64_t>(first + row) * static_cast<int>(row_stride) + chunk * kChunk;
  const SharedAddress to = tile + chunk_of(row, chunk);
#pragma unroll
  for (int n = 0; n < kTile; n += kThreads / kChunks) {
    const bool there = first + row + n < end;
    copy_async(to + static_cast<SharedAddress>(n * kRowBytes), there ? mine + n * row_stride : from, there);
  }
}

// Rows `first` to first + 15 of a tile as a left operand.
__device__ void load_operand(Operand& a, SharedAddress tile, int first, const Lane& at) {
  const SharedAddress mine = chunk_of(at.lane % 16, at.lane / 16);
#pragma unroll
  for (int k = 0; k < 4; ++k) load_matrices(a[k], tile + moved(mine, first, k));
}

// c [16, 8 kN] += a [16, 64] . rows^T, which are those of a tile from `first` on.
template <int kM, int kN>
__device__ void multiply_by_rows(float (&c)[kM][kN][4], const Operand (&a)[kM], SharedAddress tile, int first,
                                 const Lane& at) {
  const SharedAddress mine = chunk_of(at.lane / 16 * 8 + at.lane % 8, at.lane / 8 % 2);
#pragma unroll
  for (int n = 0; n < kN / 2; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t b[4];
      load_matrices(b, tile + moved(mine, first + 16 * n, k));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(c[m][2 * n], a[m][k], b[0], b[1]);
        multiply_add(c[m][2 * n + 1], a[m][k], b[2], b[3]);
      }
    }
  }
}

// c [16, 64] += a [16, 16 kK] . rows
template <int kM, int kK>
__device__ void multiply_by_columns(Sums (&c)[kM], const std::uint32_t (&a)[kM][kK][4], SharedAddress tile,
                                    int first, const Lane& at) {
  const SharedAddress mine = chunk_of(at.lane % 16, at.lane / 16);
#pragma unroll
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      std::uint32_t b[4];
      load_matrices_transposed(b, tile + moved(mine, first + 16 * k, n));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(c[m][2 * n], a[m][k], b[0], b[1]);
        multiply_add(c[m][2 * n + 1], a[m][k], b[2], b[3]);
      }
    }
  }
}

template <int kK>
__device__ void round_operand(std::uint32_t (&a)[kK][4], const float (&x)[2 * kK][4]) {
#pragma unroll
  for (int k = 0; k < kK; ++k) {
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

__device__ float if_kept(std::uint32_t bits, int which, float x) {
  return (bits >> which & 1u) != 0 ? x : 0.0f;
}

__device__ float over_row(float x, float (*fold)(float, float)) {
  x = fold(x, shuffle_xor(x, 1));
  return fold(x, shuffle_xor(x, 2));
}
__device__ float add_of(float a, float b) { return a + b; }
__device__ float maximum_of(float a, float b) { return fmaxf(a, b); }

// The product of two rows of a head, which the four lanes of a row compute.
__device__ float multiply_rows(const bfloat16* a, const bfloat16* b, const Lane& at) {
  float sum = 0;
#pragma unroll
  for (int d = 0; d < kHead; d += 4 * kChunk) {
    const auto mine = load<kChunk>(a + d + at.t * kChunk), other = load<kChunk>(b + d + at.t * kChunk);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum = fmaf(mine.at[i], other.at[i], sum);
  }
  return over_row(sum, add_of);
}

// --- forward

// Half a tile of keys for 16 queries: scores become probabilities relative to the maximum so far, and sums
// and outputs so far are rescaled to it.
__device__ void online_softmax(HalfSums& s, Sums& o, float (&maximum)[2], float (&sum)[2], float factor) {
  float most[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = maximum[r];
#pragma unroll
    for (int n = 0; n < kHalf / 8; ++n) most[r] = fmaxf(most[r], fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    most[r] = over_row(most[r], maximum_of);
  }
  if (ballot(most[0] > maximum[0] || most[1] > maximum[1]) != 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float rescale = fast_exp2((maximum[r] - most[r]) * factor);
      maximum[r] = most[r];
      sum[r] *= rescale;
#pragma unroll
      for (int n = 0; n < 8; ++n) o[n][2 * r] *= rescale, o[n][2 * r + 1] *= rescale;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float shift = maximum[r] * factor;
#pragma unroll
    for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) {
        s[n][e] = fast_exp2(fmaf(s[n][e], factor, -shift));
        sum[r] += s[n][e];
      }
    }
  }
}

// One block per 64 kM queries of a head; a warp has kM times 16 of them.
template <int kM, bool kDropout>
__global__ void __launch_bounds__(kThreads, 3)
    forward_kernel(bfloat16* out, float* lse, const bfloat16* qkv, Heads at, const std::uint32_t* mask,
                   float kept_scale) {
  constexpr int kQueries = kTile * kM;
  const SharedAddress queries = shared_address(dynamic_shared<bfloat16>());  // kM tiles
  const SharedAddress tiles = queries + kM * kTileBytes;                     // keys and values, two of each
  const Lane lane;
  const std::int64_t b = (at.first + blockIdx.x) / at.H, h = (at.first + blockIdx.x) % at.H;
  const int T = static_cast<int>(at.T), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int end = first + kQueries < T ? first + kQueries : T;  // of the keys, too
  const int my_first = lane.warp * kRows * kM;
  const int my_tile = first / kTile + my_first / kTile;
  // One tile ahead. Past the last tile of queries there are no bits, and no rows.
  std::uint32_t next_kept[kM] = {};
  const auto load_kept = [&](int keys) {
    if (!kDropout || keys > my_tile || my_tile * kTile >= T) return;
    const std::int64_t word = mask_word(blockIdx.x, T, my_tile, keys) + my_first % kTile * 2 + lane.lane;
#pragma unroll
    for (int m = 0; m < kM; ++m) next_kept[m] = mask[word + m * kWarp];
  };
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
  load_kept(0);

  Operand q[kM];
  Sums o[kM] = {};
  float maximum[kM][2], sum[kM][2] = {};
#pragma unroll
  for (int m = 0; m < kM; ++m) maximum[m][0] = maximum[m][1] = -INFINITY;
  const float factor = at.scale * kLog2E;
  for (int begin = 0; begin < end; begin += kTile) {
    std::uint32_t kept[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) kept[m] = next_kept[m];
    load_kept(begin / kTile + 1);
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
#pragma unroll
    for (int half = 0; half < kTile; half += kHalf) {
      if (begin + half > first + my_first + kM * kRows - 1) continue;  // these queries see none of the keys
      HalfSums s[kM] = {};
      multiply_by_rows(s, q, keys, half, lane);
      HalfOperand p[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const int row = first + my_first + m * kRows;
        if (begin + half + kHalf - 1 > row) {
#pragma unroll
          for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int column = half + 8 * n + 2 * lane.t + e % 2;
              if (begin + column > row + lane.g + e / 2 * 8) s[m][n][e] = -INFINITY;
            }
          }
        }
        online_softmax(s[m], o[m], maximum[m], sum[m], factor);
        if constexpr (kDropout) {
#pragma unroll
          for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = if_kept(kept[m], half / 2 + 4 * n + e, s[m][n][e]);
          }
        }
        round_operand(p[m], s[m]);
      }
      multiply_by_columns(o, p, keys + kTileBytes, half, lane);
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
      inverse[r] = kept_scale / total;
      const int i = row + lane.g + 8 * r;
      if (lane.t == 0 && i < T) lse[at.lse(b, h) + i] = maximum[m][r] * at.scale + logf(total);
    }
    store_rows(out + at.out(b, h), at.out_row(), row, T, o[m], inverse, lane);
  }
}

// --- backward

// One block per 64 queries of a head computes their gradient, and their delta for keys_kernel.
template <bool kDropout>
__global__ void __launch_bounds__(kThreads, 4)
    queries_kernel(bfloat16* dqkv, float* delta, const bfloat16* dout, const bfloat16* out, const float* lse,
                   const bfloat16* qkv, Heads at, const std::uint32_t* mask, float kept_scale) {
  const SharedAddress queries = shared_address(dynamic_shared<bfloat16>());
  const SharedAddress douts = queries + kTileBytes;
  const SharedAddress tiles = douts + kTileBytes;  // keys and values, two of each
  const Lane lane;
  const std::int64_t b = (at.first + blockIdx.x) / at.H, h = (at.first + blockIdx.x) % at.H;
  const int T = static_cast<int>(at.T), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kTile;
  const int end = first + kTile < T ? first + kTile : T;
  const int my_first = lane.warp * kRows;
  const int row = first + my_first + lane.g;  // and 8 more
  const std::uint32_t* my_mask =
      mask + mask_word(blockIdx.x, T, first / kTile, 0) + lane.warp * kWarp + lane.lane;
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
    const int i = row + 8 * r;
    const std::int64_t outs = at.out(b, h) + (i < T ? i : 0) * at.out_row();
    my_delta[r] = multiply_rows(dout + outs, out + outs, lane);
    my_lse[r] = i < T ? lse[at.lse(b, h) + i] * kLog2E : INFINITY;
    if (lane.t == 0 && i < T) delta[at.lse(b, h) + i] = my_delta[r];
  }
  Operand q[1], go[1];
  Sums dq[1] = {};
  const float factor = at.scale * kLog2E;
  std::uint32_t next_kept = kDropout ? my_mask[0] : 0;  // one tile ahead
  for (int begin = 0; begin < end; begin += kTile) {
    const std::uint32_t kept = next_kept;
    if (kDropout && begin + kTile < end) next_kept = my_mask[(begin / kTile + 1) * kMaskTileWords];
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
#pragma unroll
    for (int half = 0; half < kTile; half += kHalf) {
      if (begin + half > first + my_first + kRows - 1) continue;  // these queries see none of the keys
      HalfSums s[1] = {}, dp[1] = {};
      multiply_by_rows(s, q, keys, half, lane);
      multiply_by_rows(dp, go, keys + kTileBytes, half, lane);
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = e / 2, column = half + 8 * n + 2 * lane.t + e % 2;
          const bool seen = begin < first || begin + column <= row + 8 * r;
          const float p = seen ? fast_exp2(fmaf(s[0][n][e], factor, -my_lse[r])) : 0.0f;
          float& slope = dp[0][n][e];
          if constexpr (kDropout) slope = if_kept(kept, half / 2 + 4 * n + e, slope);
          slope = p * fmaf(slope, kept_scale, -my_delta[r]);
        }
      }
      HalfOperand ds[1];
      round_operand(ds[0], dp[0]);
      multiply_by_columns(dq, ds, keys, half, lane);
    }
    __syncthreads();
  }
  store_rows(dqkv + at.q(b, h), at.row(), first + my_first, T, dq[0], {at.scale, at.scale}, lane);
}

// One block per 64 keys of a head computes their gradient and that of the values. Scores are transposed here:
// a row is a key, a column a query.
template <bool kDropout>
__global__ void __launch_bounds__(kThreads, 3)
    keys_kernel(bfloat16* dqkv, const bfloat16* dout, const float* delta, const float* lse,
                const bfloat16* qkv, Heads at, const std::uint32_t* mask, float kept_scale) {
  const SharedAddress keys = shared_address(dynamic_shared<bfloat16>());
  const SharedAddress values = keys + kTileBytes;
  const SharedAddress tiles = values + kTileBytes;  // queries and the outputs' gradients, two of each
  __shared__ float lses[2][kTile], deltas[2][kTile];
  const Lane lane;
  const std::int64_t b = (at.first + blockIdx.x) / at.H, h = (at.first + blockIdx.x) % at.H;
  const int T = static_cast<int>(at.T), first = static_cast<int>(blockIdx.y) * kTile;
  const int my_first = lane.warp * kRows;
  const int key = first + my_first + lane.g;  // and 8 more
  const auto load_kept = [&](int begin) {
    return mask[mask_word(blockIdx.x, T, begin / kTile, first / kTile) + lane.warp * kWarp + lane.lane];
  };
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
  std::uint32_t next_kept = kDropout ? load_kept(first) : 0;  // one tile ahead
  for (int begin = first; begin < T; begin += kTile) {
    const std::uint32_t kept = next_kept;
    if (kDropout && begin + kTile < T) next_kept = load_kept(begin + kTile);
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
#pragma unroll
    for (int half = 0; half < kTile; half += kHalf) {
      if (begin + half + kHalf - 1 < first + my_first)
        continue;  // these keys are seen by none of the queries
      HalfSums s[1] = {}, dp[1] = {};
      multiply_by_rows(s, k, queries, half, lane);
      multiply_by_rows(dp, v, queries + kTileBytes, half, lane);
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = half + 8 * n + 2 * lane.t + e % 2;
          const bool seen = begin > first || key + e / 2 * 8 <= begin + column;
          float& p = s[0][n][e];
          float& slope = dp[0][n][e];
          p = seen ? fast_exp2(fmaf(p, factor, -lses[which][column])) : 0.0f;
          const int bit = half / 2 + 8 * (n / 2) + 4 * (e / 2) + 2 * (n % 2) + e % 2;
          if constexpr (kDropout) slope = if_kept(kept, bit, slope);
          slope = p * fmaf(slope, kept_scale, -deltas[which][column]);
          if constexpr (kDropout) p = if_kept(kept, bit, p);
        }
      }
      HalfOperand p[1], ds[1];
      round_operand(p[0], s[0]);
      multiply_by_columns(dv, p, queries + kTileBytes, half, lane);
      round_operand(ds[0], dp[0]);
      multiply_by_columns(dk, ds, queries, half, lane);
    }
    __syncthreads();
  }
  store_rows(dqkv + at.k(b, h), at.row(), first + my_first, T, dk[0], {at.scale, at.scale}, lane);
  store_rows(dqkv + at.v(b, h), at.row(), first + my_first, T, dv[0], {kept_scale, kept_scale}, lane);
}

constexpr std::size_t tiles_bytes(int tiles) { return static_cast<std::size_t>(tiles) * kTileBytes; }

// Calls run(heads, their number, bits, delta) with the bits drawn, for as many heads at once as their scratch
// memory allows. It is the same in both passes, since a smaller block would be kept beside the larger one.
template <typename Call, typename Run>
void run_in_pieces(const Call& call, bool backward, KernelScratch& scratch, cudaStream_t stream,
                   const Run& run) {
  Heads at = call.heads;
  const std::int64_t all = at.B * at.H, piece = call.mask.active ? attention_mask_piece(all, at.T) : all,
                     words = call.mask.active ? piece * attention_mask_bytes(at.T) / 8 : 0;
  auto* bits = scratch.take<std::uint32_t>(2 * words + all * at.T);
  auto* delta = reinterpret_cast<float*>(bits + 2 * words);
  for (; at.first < all; at.first += piece) {
    const std::int64_t count = std::min(piece, all - at.first);
    const MaskBits mask{bits, backward ? bits + words : nullptr};
    if (call.mask.active) draw_mask(mask, at, count, call.first_head, call.mask, stream);
    run(at, count, mask, delta);
  }
}
float kept_scale(const Mask& mask) { return mask.active ? mask.scale : 1.0f; }

}  // namespace

void tensor_attention_forward(const ForwardCall& call, KernelScratch& scratch, cudaStream_t stream) {
  constexpr int kM = 2;
  run_in_pieces(call, false, scratch, stream,
                [&](const Heads& at, std::int64_t count, const MaskBits& bits, float*) {
                  launch(call.mask.active ? forward_kernel<kM, true> : forward_kernel<kM, false>,
                         blocks(count, ceil_div(at.T, kM * kTile)), kThreads, tiles_bytes(4 + kM), stream,
                         static_cast<bfloat16*>(call.out), call.lse, static_cast<const bfloat16*>(call.qkv),
                         at, bits.by_query, kept_scale(call.mask));
                });
}

void tensor_attention_backward(const BackwardCall& call, KernelScratch& scratch, cudaStream_t stream) {
  run_in_pieces(call, true, scratch, stream,
                [&](const Heads& at, std::int64_t count, const MaskBits& bits, float* delta) {
                  const dim3 grid = blocks(count, ceil_div(at.T, kTile));
                  auto* dqkv = static_cast<bfloat16*>(call.dqkv);
                  const auto *dout = static_cast<const bfloat16*>(call.dout),
                             *out = static_cast<const bfloat16*>(call.out),
                             *qkv = static_cast<const bfloat16*>(call.qkv);
                  launch(call.mask.active ? queries_kernel<true> : queries_kernel<false>, grid, kThreads,
                         tiles_bytes(6), stream, dqkv, delta, dout, out, call.lse, qkv, at, bits.by_query,
                         kept_scale(call.mask));
                  launch(call.mask.active ? keys_kernel<true> : keys_kernel<false>, grid, kThreads,
                         tiles_bytes(6), stream, dqkv, dout, delta, call.lse, qkv, at, bits.by_key,
                         kept_scale(call.mask));
                });
}

}  // namespace shoal::cuda
