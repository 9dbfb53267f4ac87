// The small matrix product inside attention: c [m, n] (+)= a [m, k] . b [k, n], where n is a multiple of
// kLanes, rows of b and c are contiguous, and a has two strides, so that it may be a matrix or its transpose.
#pragma once

#include <cstdint>

#include "ops/cpu/simd.h"

namespace shoal::cpu {

struct TileA {
  const float* data;
  std::int64_t row, column;  // strides
};

template <int kRows, int kVecs>
inline void tile_kernel(float* c, std::int64_t ldc, const TileA& a, const float* b, std::int64_t ldb,
                        std::int64_t k, bool accumulate) {
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) sum[i][j] = accumulate ? load(c + i * ldc + j * kLanes) : Vec{};
  }
  for (std::int64_t p = 0; p < k; ++p) {
    Vec row[kVecs];
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) row[j] = load(b + p * ldb + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vec x = splat(a.data[i * a.row + p * a.column]);
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) sum[i][j] += x * row[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) store(c + i * ldc + j * kLanes, sum[i][j]);
  }
}

template <int kVecs>
void tile_columns(float* c, std::int64_t ldc, const TileA& a, const float* b, std::int64_t ldb,
                  std::int64_t m, std::int64_t k, bool accumulate) {
  std::int64_t i = 0;
  const auto at = [&](std::int64_t row) { return TileA{a.data + row * a.row, a.row, a.column}; };
  for (; i + 6 <= m; i += 6) tile_kernel<6, kVecs>(c + i * ldc, ldc, at(i), b, ldb, k, accumulate);
  switch (m - i) {
    case 5:
      tile_kernel<5, kVecs>(c + i * ldc, ldc, at(i), b, ldb, k, accumulate);
      break;
    case 4:
      tile_kernel<4, kVecs>(c + i * ldc, ldc, at(i), b, ldb, k, accumulate);
      break;
    case 3:
      tile_kernel<3, kVecs>(c + i * ldc, ldc, at(i), b, ldb, k, accumulate);
      break;
    case 2:
      tile_kernel<2, kVecs>(c + i * ldc, ldc, at(i), b, ldb, k, accumulate);
      break;
    case 1:
      tile_kernel<1, kVecs>(c + i * ldc, ldc, at(i), b, ldb, k, accumulate);
      break;
    default:
      break;
  }
}

inline void tile_product(float* c, std::int64_t ldc, const TileA& a, const float* b, std::int64_t ldb,
                         std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
  constexpr std::int64_t kStep = kTileVecs * kLanes;
  std::int64_t j = 0;
  for (; j + kStep <= n; j += kStep) tile_columns<kTileVecs>(c + j, ldc, a, b + j, ldb, m, k, accumulate);
  const auto rest = [&]<int kVecs>() {
    if constexpr (kVecs < kTileVecs) {
      if (n - j == kVecs * kLanes) tile_columns<kVecs>(c + j, ldc, a, b + j, ldb, m, k, accumulate);
    }
  };
  rest.template operator()<1>();
  rest.template operator()<2>();
  rest.template operator()<3>();
}

}  // namespace shoal::cpu
