// The forward pass of attention on tensor cores.
#include "ops/cuda/attention_tiles.cuh"

namespace shoal::cuda {
namespace {

using namespace tensor_tiles;

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
  const auto [b, h] = head_of(at, blockIdx.x);
  const int T = static_cast<int>(at.T), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int end = first + kQueries < T ? first + kQueries : T;  // of the keys, too
  const int my_first = lane.warp * kRows * kM;
  const MyMask<kM, kDropout> my_mask(mask, at.T, first + my_first, lane);
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
  std::uint32_t kept[kM] = {}, next_kept[kM] = {};  // the latter one tile ahead
  my_mask.load(next_kept, 0);
  const float factor = at.scale * kLog2E;
  for (int begin = 0; begin < end; begin += kTile) {
#pragma unroll
    for (int m = 0; m < kM; ++m) kept[m] = next_kept[m];
    my_mask.load(next_kept, begin / kTile + 1);
    const bool more = begin + kTile < end;
    if (more) copy(begin + kTile);
    await_tile(more);
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
        if (begin + half + kHalf - 1 > row) hide_later(s[m], row + lane.g - begin - half - 2 * lane.t);
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
      if (lse && lane.t == 0 && i < T) lse[at.lse(b, h) + i] = maximum[m][r] * at.scale + logf(total);
    }
    store_rows(out + at.out(b, h), at.out_row(), row, T, o[m], inverse, lane);
  }
}

}  // namespace

void tensor_attention_forward(const ForwardCall& call, KernelScratch& scratch, cudaStream_t stream) {
  constexpr int kM = 2;
  const auto kernel = call.mask.active ? forward_kernel<kM, true> : forward_kernel<kM, false>;
  const auto run = [&](const Heads& at, std::int64_t count, const MaskBits& bits, float*) {
    launch(kernel, blocks(count, ceil_div(at.T, kM * kTile)), kThreads, tiles_bytes(4 + kM), stream,
           static_cast<bfloat16*>(call.out), call.lse, static_cast<const bfloat16*>(call.qkv), at,
           bits.by_query, kept_scale(call.mask));
  };
  run_in_pieces(call, false, scratch, stream, run);
}

}  // namespace shoal::cuda
