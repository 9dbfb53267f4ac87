// The dropout mask of attention as bits, for the kernels on tensor cores. A Philox block covers eight keys of
// a query; drawing it once here costs less than drawing it wherever its scores are computed.
#include "ops/cuda/attention.cuh"

namespace shoal::cuda {
namespace {

constexpr int kMaskThreads = 128, kMaskWarps = kMaskThreads / kWarp;
constexpr int kMaskSide = static_cast<int>(kMaskTile);

// Units of a warp: 64 queries and the 128 keys that a Philox block reaches, at or below the diagonal.
__host__ __device__ std::int64_t units_of(std::int64_t T) {
  const std::int64_t tiles = mask_tiles(T);
  return (tiles / 2 + 1) * ((tiles + 1) / 2);
}

// Transposes four words: word w of the result has byte w of each.
__device__ void transpose_bytes(std::uint32_t (&x)[4]) {
  const std::uint32_t low01 = pick_bytes(x[0], x[1], 0x5140), low23 = pick_bytes(x[2], x[3], 0x5140),
                      high01 = pick_bytes(x[0], x[1], 0x7362), high23 = pick_bytes(x[2], x[3], 0x7362);
  x[0] = pick_bytes(low01, low23, 0x5410);
  x[1] = pick_bytes(low01, low23, 0x7632);
  x[2] = pick_bytes(high01, high23, 0x5410);
  x[3] = pick_bytes(high01, high23, 0x7632);
}

// Lane 4 g + t draws keys g and g + 8 of every 16, for queries 2 t and 2 t + 1 of every 8. These are the bits
// of its words by key; those by query are among its own bits and those of the lane of the neighbouring keys.
__global__ void __launch_bounds__(kMaskThreads)
    mask_kernel(MaskBits to, Heads at, std::int64_t count, std::int64_t first_head, Mask mask) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const std::uint32_t which = blockIdx.x * kMaskWarps + threadIdx.x / kWarp,
                      units = static_cast<std::uint32_t>(units_of(at.T)), local = which / units;
  if (local >= count) return;
  const auto [b, h] = head_of(at, local);
  int keys = static_cast<int>(which % units), queries = 0;  // in units of 128, and of 64
  while (keys > queries / 2) keys -= queries / 2 + 1, ++queries;

  const std::uint32_t site = head_site(mask, first_head + h), step = *mask.step,
                      row = mask.row(b, queries * kMaskSide) + static_cast<std::uint32_t>(2 * t),
                      counter = static_cast<std::uint32_t>(16 * keys + g);
  std::uint32_t bits[2][4] = {};  // tile and 16 keys of it
#pragma unroll 1
  for (std::uint32_t n = 0; n < 8; ++n) {
    const std::uint32_t first = 1u << (n / 2 * 8 + n % 2 * 2);
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (std::uint32_t e = 0; e < 2; ++e) {
        const Words words = philox_words(mask.key, counter + 8 * half, row + 8 * n + e, site, step);
        const std::uint32_t bit = first << (4 * half + e);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const std::uint32_t value =
              i % 2 == 0 ? words.at[i / 2] << 16 : words.at[i / 2];  // in the upper half
          if (value >= mask.threshold << 16) bits[i / 4][i % 4] |= bit;
        }
      }
    }
  }

  // Queries 2 t and 2 t + 1 differ in the lowest bit's place, keys 2 t and 2 t + 1 in lane 4.
  const std::uint32_t odd = static_cast<std::uint32_t>(g % 2), mine = 0x55555555u << odd;
  const int lane_by_query = 8 * t + 4 * (g % 2) + g / 2;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    if (2 * keys + tile > queries) return;  // above the diagonal
    const std::int64_t first = mask_word(local, at.T, queries, 2 * keys + tile);
    if (to.by_key) {
#pragma unroll
      for (int group = 0; group < 4; ++group) to.by_key[first + group * kWarp + lane] = bits[tile][group];
    }
    transpose_bytes(bits[tile]);
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const std::uint32_t own = bits[tile][group], other = shuffle_xor(own, 4) & mine;
      to.by_query[first + group * kWarp + lane_by_query] =
          (own & mine) | (odd != 0 ? other >> 1 : other << 1);
    }
  }
}

}  // namespace

void draw_mask(const MaskBits& to, const Heads& at, std::int64_t count, std::int64_t first_head,
               const Mask& mask, cudaStream_t stream) {
  launch(mask_kernel, blocks(ceil_div(count * units_of(at.T), kMaskWarps)), kMaskThreads, 0, stream, to, at,
         count, first_head, mask);
}

}  // namespace shoal::cuda
