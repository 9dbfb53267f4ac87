// The backward pass of attention on tensor cores.
#include "ops/cuda/attention_tiles.cuh"

namespace shoal::cuda {
namespace {

using namespace tensor_tiles;

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

// One block per 64 kM queries of a head computes their gradient, and their delta for keys_kernel.
template <int kM, bool kDropout>
__global__ void __launch_bounds__(kThreads, kM == 1 ? 4 : 2)
    queries_kernel(bfloat16* dqkv, float* delta, const bfloat16* dout, const bfloat16* out, const float* lse,
                   const bfloat16* qkv, Heads at, const std::uint32_t* mask, float kept_scale) {
  constexpr int kQueries = kTile * kM;
  const SharedAddress queries = shared_address(dynamic_shared<bfloat16>());  // kM tiles
  const SharedAddress douts = queries + kM * kTileBytes;
  const SharedAddress tiles = douts + kM * kTileBytes;  // keys and values, two of each
  const Lane lane;
  const auto [b, h] = head_of(at, blockIdx.x);
  const int T = static_cast<int>(at.T), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int end = first + kQueries < T ? first + kQueries : T;
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
    copy_tile(douts + m * kTileBytes, dout + at.out(b, h), at.out_row(), first + m * kTile, T);
  }
  copy(0);

  // Past the end the probability is 2^-inf.
  float my_lse[kM][2], my_delta[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = first + my_first + m * kRows + lane.g + 8 * r;
      const std::int64_t outs = at.out(b, h) + (i < T ? i : 0) * at.out_row();
      my_delta[m][r] = multiply_rows(dout + outs, out + outs, lane);
      my_lse[m][r] = i < T ? lse[at.lse(b, h) + i] * kLog2E : INFINITY;
      if (lane.t == 0 && i < T) delta[at.lse(b, h) + i] = my_delta[m][r];
    }
  }
  Operand q[kM], go[kM];
  Sums dq[kM] = {};
  const float factor = at.scale * kLog2E;
  std::uint32_t kept[kM] = {}, next_kept[kM] = {};  // the latter one tile ahead
  my_mask.load(next_kept, 0);
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
      for (int m = 0; m < kM; ++m) {
        load_operand(q[m], queries, my_first + m * kRows, lane);
        load_operand(go[m], douts, my_first + m * kRows, lane);
      }
    }
#pragma unroll
    for (int half = 0; half < kTile; half += kHalf) {
      if (begin + half > first + my_first + kM * kRows - 1) continue;  // these queries see none of the keys
      HalfSums s[kM] = {}, dp[kM] = {};
      multiply_by_rows(s, q, keys, half, lane);
      multiply_by_rows(dp, go, keys + kTileBytes, half, lane);
      HalfOperand ds[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const int row = first + my_first + m * kRows;
        if (begin + half + kHalf - 1 > row) hide_later(s[m], row + lane.g - begin - half - 2 * lane.t);
#pragma unroll
        for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float p = fast_exp2(fmaf(s[m][n][e], factor, -my_lse[m][e / 2]));
            float& slope = dp[m][n][e];
            if constexpr (kDropout) slope = if_kept(kept[m], half / 2 + 4 * n + e, slope);
            slope = p * fmaf(slope, kept_scale, -my_delta[m][e / 2]);
          }
        }
        round_operand(ds[m], dp[m]);
      }
      multiply_by_columns(dq, ds, keys, half, lane);
    }
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    store_rows(dqkv + at.q(b, h), at.row(), first + my_first + m * kRows, T, dq[m], {at.scale, at.scale},
               lane);
  }
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
  const auto [b, h] = head_of(at, blockIdx.x);
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
  };
  // An lse or a delta for each thread. Past the end the probability is 2^-inf.
  const bool of_lse = threadIdx.x < kTile;
  const int mine = static_cast<int>(threadIdx.x) % kTile;
  const float* const my_sums = (of_lse ? lse : delta) + at.lse(b, h) + mine;
  const auto load_sum = [&](int begin) {
    return begin + mine < T ? my_sums[begin] : of_lse ? INFINITY : 0.0f;
  };
  const auto share_sum = [&](int begin, float sum) {
    (of_lse ? lses : deltas)[begin / kTile % 2][mine] = of_lse ? sum * kLog2E : sum;
  };
  copy_tile(keys, qkv + at.k(b, h), at.row(), first, T);
  copy_tile(values, qkv + at.v(b, h), at.row(), first, T);
  copy(first);
  share_sum(first, load_sum(first));

  Operand k[1], v[1];
  Sums dk[1] = {}, dv[1] = {};
  const float factor = at.scale * kLog2E;
  std::uint32_t next_kept = kDropout ? load_kept(first) : 0;  // one tile ahead
  for (int begin = first; begin < T; begin += kTile) {
    const std::uint32_t kept = next_kept;
    const bool more = begin + kTile < T;
    if (kDropout && more) next_kept = load_kept(begin + kTile);
    float next_sum = 0;  // shared at the end, when it has arrived
    if (more) {
      copy(begin + kTile);
      next_sum = load_sum(begin + kTile);
    }
    await_tile(more);
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
      if (begin + half < first + my_first + kRows - 1) {
        hide_earlier(s[0], key - begin - half - 2 * lane.t);
      }
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = half + 8 * n + 2 * lane.t + e % 2;
          float& p = s[0][n][e];
          float& slope = dp[0][n][e];
          p = fast_exp2(fmaf(p, factor, -lses[which][column]));
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
    share_sum(begin + kTile, next_sum);
    __syncthreads();
  }
  store_rows(dqkv + at.k(b, h), at.row(), first + my_first, T, dk[0], {at.scale, at.scale}, lane);
  store_rows(dqkv + at.v(b, h), at.row(), first + my_first, T, dv[0], {kept_scale, kept_scale}, lane);
}

}  // namespace

void tensor_attention_backward(const BackwardCall& call, KernelScratch& scratch, cudaStream_t stream) {
  constexpr int kM = 1;
  const auto queries = call.mask.active ? queries_kernel<kM, true> : queries_kernel<kM, false>;
  const auto keys = call.mask.active ? keys_kernel<true> : keys_kernel<false>;
  auto* dqkv = static_cast<bfloat16*>(call.dqkv);
  const auto *dout = static_cast<const bfloat16*>(call.dout), *out = static_cast<const bfloat16*>(call.out),
             *qkv = static_cast<const bfloat16*>(call.qkv);
  const auto run = [&](const Heads& at, std::int64_t count, const MaskBits& bits, float* delta) {
    launch(queries, blocks(count, ceil_div(at.T, kM * kTile)), kThreads, tiles_bytes(4 + 2 * kM), stream,
           dqkv, delta, dout, out, call.lse, qkv, at, bits.by_query, kept_scale(call.mask));
    launch(keys, blocks(count, ceil_div(at.T, kTile)), kThreads, tiles_bytes(6), stream, dqkv, dout, delta,
           call.lse, qkv, at, bits.by_key, kept_scale(call.mask));
  };
  run_in_pieces(call, true, scratch, stream, run);
}

}  // namespace shoal::cuda
