// Shared by kernels: loads of several elements at once, sums over warps and blocks, dropout masks.
#pragma once

#include <cmath>

#include "core/philox.h"
#include "ops/cuda/gpu.cuh"
#include "ops/dropout.h"
#include "ops/with_type.h"

namespace shoal::cuda {

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bfloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
// The first and the second of two bfloat16 in a register.
__device__ inline float widen_low(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
__device__ inline float widen_high(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
template <typename T>
__device__ T narrow(float x) {
  if constexpr (sizeof(T) == 2) {
    return round_to_bfloat16(x);
  } else {
    return x;
  }
}

// x as a T has it.
template <typename T>
__device__ float rounded(float x) {
  return widen(narrow<T>(x));
}

// --- several elements at once, as float32. The address is aligned to their size, or to 16 bytes if that is
// less.
template <int kCount>
struct Floats {
  float at[kCount];
};

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};

template <int kCount, typename T>
__device__ Floats<kCount> load(const T* from) {
  const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
  Floats<kCount> x;
#pragma unroll
  for (int i = 0; i < kCount; ++i) x.at[i] = widen(pack.at[i]);
  return x;
}
// The same in two steps. What is loaded ahead keeps as many registers as it has words of memory.
template <typename T, int kCount>
struct Packed {
  Pack<std::uint32_t, kCount * sizeof(T) / sizeof(std::uint32_t)> words = {};
};
template <int kCount, typename T>
__device__ Packed<T, kCount> load_packed(const T* from) {
  return *reinterpret_cast<const Packed<T, kCount>*>(from);
}
template <typename T, int kCount>
__device__ Floats<kCount> widen(const Packed<T, kCount>& x) {
  Floats<kCount> wide;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (sizeof(T) == 2) {
      const std::uint32_t pair = x.words.at[i / 2];
      wide.at[i] = i % 2 == 0 ? widen_low(pair) : widen_high(pair);
    } else {
      wide.at[i] = std::bit_cast<float>(x.words.at[i]);
    }
  }
  return wide;
}
template <int kCount, typename T>
__device__ void store(T* to, const Floats<kCount>& x) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.at[i] = narrow<T>(x.at[i]);
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// --- maxima and minima over a warp, returned to all lanes
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}
__device__ inline std::int32_t warp_min(std::int32_t x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const std::int32_t other = shuffle_xor(x, mask);
    if (other < x) x = other;
  }
  return x;
}

// --- sums, in an order that is fixed by the number of threads
template <typename T>
__device__ T warp_sum(T x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
// The sum over a block of kThreads, returned to all threads. Every call needs shared memory of its own or a
// barrier before.
template <int kThreads, typename T>
__device__ T block_sum(T x, T (&shared)[kThreads / kWarp]) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  T total = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += shared[warp];
  return total;
}

// --- dropout as ops/dropout.h defines it; the host computes everything but the step and the row
struct Mask {
  PhiloxKey key;
  const std::uint32_t* step;
  std::uint32_t site, threshold;
  float scale;
  std::int64_t first_row, sequence;  // row of the global batch for local sample b, position t
  std::int64_t first_column;         // a multiple of 16; heeded by row_kernel alone
  bool active;

  Mask() = default;
  explicit Mask(const Dropout& dropout)
      : key(philox_key(dropout.seed, PhiloxStream::dropout)),
        step(dropout.step),
        site(dropout.site),
        threshold(dropout.threshold()),
        scale(dropout.scale()),
        first_row(dropout.window.row(0, 0)),
        sequence(dropout.window.sequence),
        first_column(dropout.first_column),
        active(dropout.active()) {}

  __device__ std::uint32_t row(std::int64_t b, std::int64_t t) const {
    return static_cast<std::uint32_t>(first_row + b * sequence + t);
  }
};

struct Words {
  std::uint32_t at[4];
};

__device__ inline Words philox_words(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                     std::uint32_t c3) {
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint32_t high0 = multiply_high(kPhiloxM0, c0), low0 = kPhiloxM0 * c0,
                        high1 = multiply_high(kPhiloxM1, c2), low1 = kPhiloxM1 * c2;
    c0 = high1 ^ c1 ^ key.lo;
    c1 = low1;
    c2 = high0 ^ c3 ^ key.hi;
    c3 = low0;
    key.lo += kPhiloxW0;
    key.hi += kPhiloxW1;
  }
  return {{c0, c1, c2, c3}};
}

inline constexpr int kMaskColumns = 128;  // of a block of the mask
inline constexpr int kMaskLanes = 16;     // that share a block's columns
inline constexpr int kMaskEach = 8;       // columns of a lane: its own, and every 16th from there
// The factors of the columns 128 * block + lane + 16 i of a row, for i in 0..7 and a lane below 16.
struct Factors {
  float at[8];
};
__device__ inline Factors dropout_factors(const Mask& mask, std::uint32_t site, std::uint32_t row,
                                          std::uint32_t block, std::uint32_t lane) {
  const Words words = philox_words(mask.key, block * 16 + lane, row, site, *mask.step);
  Factors factors;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t bits = words.at[i / 2] >> (16 * (i % 2)) & 0xffffu;
    factors.at[i] = bits < mask.threshold ? 0.0f : mask.scale;
  }
  return factors;
}
// The same for one column.
__device__ inline float dropout_factor(const Mask& mask, std::uint32_t site, std::uint32_t row,
                                       std::uint32_t column) {
  const Words words = philox_words(mask.key, column / 128 * 16 + column % 16, row, site, *mask.step);
  const std::uint32_t value = column / 16 % 8;
  const std::uint32_t low = value / 2 % 2 ? words.at[1] : words.at[0],
                      high = value / 2 % 2 ? words.at[3] : words.at[2];
  const std::uint32_t bits = (value / 4 ? high : low) >> (16 * (value % 2)) & 0xffffu;
  return bits < mask.threshold ? 0.0f : mask.scale;
}
// The same for a warp whose lanes have four neighbouring columns, 256 * pair + 128 * i + 4 * lane + j for i
// below 2 and j below 4: bit 4 * i + j is whether a column is kept. All lanes take part.
__device__ inline std::uint32_t kept_columns(const Mask& mask, std::uint32_t row, std::uint32_t pair) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  // A lane draws eight values; 16 neighbouring lanes have those of four lanes' columns. The bits are
  // exchanged as one word for each of the eight.
  const Words words = philox_words(mask.key, pair * kWarp + lane, row, mask.site, *mask.step);
  std::uint32_t mine = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::uint32_t kept = ballot((words.at[i / 2] >> (16 * (i % 2)) & 0xffffu) >= mask.threshold);
    if (lane / 4 == i) mine = kept;
  }
  mine >>= lane % 4 * 4;
  return (mine & 0xfu) | (mine >> 12 & 0xf0u);
}
// The factors of four of these columns.
__device__ inline Floats<4> kept_factors(const Mask& mask, std::uint32_t kept) {
  Floats<4> factors;
#pragma unroll
  for (int j = 0; j < 4; ++j) factors.at[j] = (kept >> j & 1u) != 0 ? mask.scale : 0.0f;
  return factors;
}
// The site with the model's head in its upper half, as attention_site().
__device__ inline std::uint32_t head_site(const Mask& mask, std::int64_t head) {
  return mask.site | static_cast<std::uint32_t>(head) << 16;
}

// --- on the host
inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline dim3 blocks(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}
template <typename... Pointers>
bool aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace shoal::cuda
