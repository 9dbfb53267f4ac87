// The tile kernel of products of bfloat16 by vdpbf16ps, and what packs its operands: c [rows, columns] (+)=
// a [rows, 2 pairs] . b [2 pairs, columns] + bias, with sums in float32.
#pragma once

#include "ops/cpu/simd.h"

#ifdef __AVX512BF16__

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace shoal::cpu {

// Two neighbours along K, which one lane of vdpbf16ps multiplies and adds.
using Pair = std::uint32_t;

constexpr std::int64_t kStrip = 6;           // rows of a tile: 24 sums in registers beside 4 of the panel
constexpr std::int64_t kPanel = 4 * kLanes;  // columns of a tile
inline std::int64_t count_of(std::int64_t n, std::int64_t piece) { return (n + piece - 1) / piece; }

inline __mmask16 lanes(std::int64_t live) {
  return static_cast<__mmask16>((1u << std::min<std::int64_t>(live, kLanes)) - 1);
}

// Loads and stores of some lanes by masks. load_n and store_n call memcpy, and sums that live across a call
// are not kept in registers.
inline VecU widened(const bfloat16* from, __mmask16 live) {
  return (VecU)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(live, from));
}
inline Vec load_live(const bfloat16* from, __mmask16 live) { return (Vec)(widened(from, live) << 16); }
inline Vec load_live(const float* from, __mmask16 live) { return (Vec)_mm512_maskz_loadu_ps(live, from); }
inline void store_live(bfloat16* to, Vec value, __mmask16 live) {
  if (live == 0xffff) return store(to, value);  // masked stores of 16 bits are slow
  _mm256_mask_storeu_epi16(to, live, (__m256i)_mm512_cvtneps_pbh((__m512)value));
}
inline void store_live(float* to, Vec value, __mmask16 live) {
  _mm512_mask_storeu_ps(to, live, (__m512)value);
}

// Transposes 16 x 16 pairs.
inline void transpose_pairs(VecU (&rows)[kLanes]) {
  const auto exchange = [&]<int kDistance>() {
    VecU first, second;  // lanes of the two rows, the second one's numbered from 16
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      first[lane] = lane & kDistance ? lane - kDistance + kLanes : lane;
      second[lane] = lane & kDistance ? lane + kLanes : lane + kDistance;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & kDistance) continue;
      const VecU a = rows[i], b = rows[i + kDistance];
      rows[i] = __builtin_shuffle(a, b, first);
      rows[i + kDistance] = __builtin_shuffle(a, b, second);
    }
  };
  exchange.template operator()<8>();
  exchange.template operator()<4>();
  exchange.template operator()<2>();
  exchange.template operator()<1>();
}

// to [depth / 2][columns in whole vectors] = pairs of from [columns, stride], zero in the padding
inline void pack_pairs_transposed(Pair* to, const bfloat16* from, std::int64_t stride, std::int64_t columns,
                                  std::int64_t depth) {
  const std::int64_t width = count_of(columns, kLanes) * kLanes, pairs = depth / 2;
  for (std::int64_t column = 0; column < width; column += kLanes) {
    for (std::int64_t pair = 0; pair < pairs; pair += kLanes) {
      VecU rows[kLanes];
      const auto live = lanes(pairs - pair);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        rows[i] = column + i < columns
                      ? (VecU)_mm512_maskz_loadu_epi32(live, from + (column + i) * stride + 2 * pair)
                      : VecU{};
      }
      transpose_pairs(rows);
      const auto count = std::min<std::int64_t>(kLanes, pairs - pair);
      for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(to + (pair + i) * width + column, &rows[i], sizeof rows[i]);
    }
  }
}

// to [depth / 2, rounded up][columns in whole vectors] = pairs of rows of from [depth, stride], zero in the
// padding
inline void pack_pairs(Pair* to, const bfloat16* from, std::int64_t stride, std::int64_t columns,
                       std::int64_t depth) {
  const std::int64_t width = count_of(columns, kLanes) * kLanes;
  for (std::int64_t k = 0; k < depth; k += 2) {
    const bfloat16* row = from + k * stride;
    for (std::int64_t column = 0; column < width; column += kLanes) {
      const auto live = lanes(columns - column);
      const VecU even = widened(row + column, live);
      const VecU odd = k + 1 < depth ? widened(row + stride + column, live) : VecU{};
      const VecU pairs = even | odd << 16;
      std::memcpy(to + k / 2 * width + column, &pairs, sizeof pairs);
    }
  }
}

// Pairs from one packed strip to the next: whole cache lines, and one more, so that strips do not compete for
// the same sets of a cache.
inline std::int64_t strip_pairs(std::int64_t pairs) {
  return count_of(pairs * kStrip, kLanes) * kLanes + kLanes;
}

// to [strips][depth / 2, rounded up][kStrip] = pairs of rows of from [depth, stride], whose columns are rows
// of the result; `size` is from strip to strip. The rest of a last strip may be anything.
inline void pack_strips(Pair* to, std::int64_t size, const bfloat16* from, std::int64_t stride,
                        std::int64_t rows, std::int64_t depth) {
  for (std::int64_t k = 0; k < depth; k += 2, to += kStrip) {
    const bfloat16* row = from + k * stride;
    Pair* at = to;
    for (std::int64_t i = 0; i < rows; i += kStrip, at += size) {
      const auto live = static_cast<__mmask8>(lanes(rows - i));
      const auto even = _mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(live, row + i));
      const auto odd =
          k + 1 < depth ? _mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(live, row + stride + i)) : __m256i{};
      const auto both = _mm256_or_si256(even, _mm256_slli_epi32(odd, 16));
      if (k + 2 < depth) {
        std::memcpy(at, &both, sizeof both);  // two lanes too many, which the next pair overwrites
      } else {
        _mm256_mask_storeu_epi32(at, (1 << kStrip) - 1, both);
      }
    }
  }
}

// The left operand of a tile: pair p of row r is at data + r * row + p * pair (in elements of bfloat16).
template <bool kPacked>
struct Left {
  const bfloat16* data;
  std::int64_t stride;  // of rows that are not packed
  std::int64_t row() const { return kPacked ? 2 : stride; }
  static constexpr std::int64_t kPair = kPacked ? 2 * kStrip : 2;
};

// The right operand: pairs [pairs][stride], of which a tile reads whole vectors.
struct Right {
  const Pair* data;
  std::int64_t stride;
};

template <typename T>
struct Result {
  T* data;
  std::int64_t stride;
  const bfloat16* bias;  // of the tile's columns, or null
  bool add;
};

template <int kHeight, int kVecs, bool kPacked, typename T>
void tile(const Result<T>& c, std::int64_t columns, const Left<kPacked>& a, const Right& b,
          std::int64_t pairs) {
  __m512 sums[kHeight][kVecs] = {};
#pragma GCC unroll 8
  for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) __builtin_prefetch(c.data + i * c.stride + j * kLanes, 1);
  }
  const bfloat16* left = a.data;
  const Pair* right = b.data;
  const std::int64_t row = a.row();
  for (std::int64_t p = 0; p < pairs; ++p, left += Left<kPacked>::kPair, right += b.stride) {
    __m512bh panel[kVecs];
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) panel[j] = (__m512bh)_mm512_loadu_si512(right + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kHeight; ++i) {
      std::int32_t pair;
      std::memcpy(&pair, left + i * row, sizeof pair);
      const auto x = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], x, panel[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVecs; ++j) {
    const auto live = lanes(columns - j * kLanes);
    const Vec bias = c.bias ? load_live(c.bias + j * kLanes, live) : Vec{};
#pragma GCC unroll 8
    for (int i = 0; i < kHeight; ++i) {
      T* at = c.data + i * c.stride + j * kLanes;
      Vec value = (Vec)sums[i][j] + bias;
      if (c.add) value += load_live(at, live);
      store_live(at, value, live);
    }
  }
}

template <int kVecs, bool kPacked, typename T>
void tiles(Result<T> c, std::int64_t rows, std::int64_t columns, Left<kPacked> a, const Right& b,
           std::int64_t pairs) {
  for (; rows >= kStrip; rows -= kStrip) {
    tile<kStrip, kVecs>(c, columns, a, b, pairs);
    c.data += kStrip * c.stride;
    a.data += kPacked ? 2 * strip_pairs(pairs) : kStrip * a.stride;
  }
  const auto rest = [&]<int kHeight>() {
    if (rows == kHeight) tile<kHeight, kVecs>(c, columns, a, b, pairs);
  };
  rest.template operator()<1>();
  rest.template operator()<2>();
  rest.template operator()<3>();
  rest.template operator()<4>();
  rest.template operator()<5>();
}

template <bool kPacked, typename T>
void panel_product(const Result<T>& c, std::int64_t rows, std::int64_t columns, const Left<kPacked>& a,
                   const Right& b, std::int64_t pairs) {
  switch (count_of(columns, kLanes)) {
    case 1:
      return tiles<1>(c, rows, columns, a, b, pairs);
    case 2:
      return tiles<2>(c, rows, columns, a, b, pairs);
    case 3:
      return tiles<3>(c, rows, columns, a, b, pairs);
    default:
      return tiles<4>(c, rows, columns, a, b, pairs);
  }
}

}  // namespace shoal::cpu

#endif
