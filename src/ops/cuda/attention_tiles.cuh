// Parts of the kernels of attention on tensor cores: bfloat16, 64 channels a head, tiles of 64 x 64.
//
// A warp has 16 rows (queries, or keys in the gradients of keys and values) of a tile and all its columns. As
// accumulators of a product its elements are float [8][4]: in the 8 columns from 8 n on, lane = 4 g + t has
// [n][0], [n][1] of row g at columns 2 t, 2 t + 1, and [n][2], [n][3] of row g + 8. As the left operand of
// the next product they are the same registers rounded and packed, uint32 [4][4]: 16 columns each.
#pragma once

#include <algorithm>

#include "ops/cuda/attention.cuh"
#include "ops/cuda/cuda.h"

namespace shoal::cuda::tensor_tiles {

inline constexpr int kHead = static_cast<int>(kTensorHead), kTile = 64, kWarps = 4, kThreads = kWarps * kWarp;
inline constexpr int kRows = 16;                            // of a warp
inline constexpr int kChunk = 8, kChunks = kHead / kChunk;  // 16 bytes, copied and loaded at once
inline constexpr int kRowBytes = kHead * static_cast<int>(sizeof(bfloat16));
inline constexpr SharedAddress kTileBytes = kTile * kRowBytes;
inline constexpr float kLog2E = 1.4426950408889634f;
static_assert(kTile == kWarps * kRows && kTile == kHead);

using Sums = float[8][4];             // 16 x 64 as accumulators
using Operand = std::uint32_t[4][4];  // 16 x 64 as a left operand
using HalfSums = float[4][4];         // the same of 32 columns, all that registers hold of scores
using HalfOperand = std::uint32_t[2][4];
inline constexpr int kHalf = kTile / 2;

struct Lane {
  int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int g = lane / 4, t = lane % 4;
};

// A tile in shared memory is [64][64]; the chunks of a row are permuted by its last three bits, so that eight
// rows' chunks of one column stand in all banks. 2 k chunks on from an even one is a change of two bits,
// which leaves one address per lane and constants.
__device__ inline SharedAddress chunk_of(int row, int chunk) {
  return static_cast<SharedAddress>(row * kRowBytes + (chunk ^ (row % 8)) * 16);
}
__device__ inline SharedAddress moved(SharedAddress address, int rows, int chunk_pairs) {
  return static_cast<SharedAddress>(rows * kRowBytes) +
         (address ^ static_cast<SharedAddress>(chunk_pairs * 32));
}

// Rows first to first + 63 of a head; zeros past the end.
__device__ inline void copy_tile(SharedAddress tile, const bfloat16* from, std::int64_t row_stride, int first,
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

// Waits for the copies of a tile, by all threads; with `more`, those of the next one have been queued and go
// on.
__device__ inline void await_tile(bool more) {
  if (more) {
    wait_for_copies<1>();
  } else {
    wait_for_copies<0>();
  }
  __syncthreads();
}

// Rows `first` to first + 15 of a tile as a left operand.
__device__ inline void load_operand(Operand& a, SharedAddress tile, int first, const Lane& at) {
  const SharedAddress mine = chunk_of(at.lane % 16, at.lane / 16);
#pragma unroll
  for (int k = 0; k < 4; ++k) load_matrices(a[k], tile + moved(mine, first, k));
}

// c [16, 8 kN] += a [16, 64] . rows^T, which are those of a tile from `first` on.
template <int kM, int kN>
__device__ inline void multiply_by_rows(float (&c)[kM][kN][4], const Operand (&a)[kM], SharedAddress tile,
                                        int first, const Lane& at) {
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
__device__ inline void multiply_by_columns(Sums (&c)[kM], const std::uint32_t (&a)[kM][kK][4],
                                           SharedAddress tile, int first, const Lane& at) {
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
__device__ inline void round_operand(std::uint32_t (&a)[kK][4], const float (&x)[2 * kK][4]) {
#pragma unroll
  for (int k = 0; k < kK; ++k) {
    a[k][0] = pack_bfloat16(x[2 * k][0], x[2 * k][1]);
    a[k][1] = pack_bfloat16(x[2 * k][2], x[2 * k][3]);
    a[k][2] = pack_bfloat16(x[2 * k + 1][0], x[2 * k + 1][1]);
    a[k][3] = pack_bfloat16(x[2 * k + 1][2], x[2 * k + 1][3]);
  }
}

// Writes rows of x, scaled, to a head's rows before `end`.
__device__ inline void store_rows(bfloat16* to, std::int64_t row_stride, int first, int end, const Sums& x,
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

__device__ inline float if_kept(std::uint32_t bits, int which, float x) {
  return (bits >> which & 1u) != 0 ? x : 0.0f;
}

__device__ inline float over_row(float x, float (*fold)(float, float)) {
  x = fold(x, shuffle_xor(x, 1));
  return fold(x, shuffle_xor(x, 2));
}
__device__ inline float add_of(float a, float b) { return a + b; }
__device__ inline float maximum_of(float a, float b) { return fmaxf(a, b); }

// The scores at later keys than the query: at columns above `last` in row g, relative to the lane's first.
__device__ inline void hide_later(HalfSums& s, int last) {
#pragma unroll
  for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (8 * n + e % 2 > last + e / 2 * 8) s[n][e] = -INFINITY;
    }
  }
}

// The same where rows are keys and columns queries: at columns before `first` in row g.
__device__ inline void hide_earlier(HalfSums& s, int first) {
#pragma unroll
  for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (8 * n + e % 2 < first + e / 2 * 8) s[n][e] = -INFINITY;
    }
  }
}

// The bits of a dropout mask for 16 kM queries from `first` on, those of a warp.
template <int kM, bool kDropout>
struct MyMask {
  const std::uint32_t* words;
  int tile;  // of the queries; -1 past the last one, which has no bits

  __device__ MyMask(const std::uint32_t* mask, std::int64_t T, int first, const Lane& at)
      : words(mask + mask_word(blockIdx.x, T, first / kTile, 0) + first % kTile / kRows * kWarp + at.lane),
        tile(first < (T + kTile - 1) / kTile * kTile ? first / kTile : -1) {}
  __device__ void load(std::uint32_t (&bits)[kM], int keys) const {
    if constexpr (kDropout) {
      if (keys > tile) return;
#pragma unroll
      for (int m = 0; m < kM; ++m) bits[m] = words[keys * kMaskTileWords + m * kWarp];
    }
  }
};

inline constexpr std::size_t tiles_bytes(int tiles) { return static_cast<std::size_t>(tiles) * kTileBytes; }

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
inline float kept_scale(const Mask& mask) { return mask.active ? mask.scale : 1.0f; }

}  // namespace shoal::cuda::tensor_tiles
