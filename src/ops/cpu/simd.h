// The widest vector of floats that the level's registers hold, in the compiler's vector extension: one type
// for AVX-512, AVX2, SSE and NEON, with the same arithmetic on each.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE4_1__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "core/dtype.h"

namespace shoal::cpu {

// A vector that is wider than a register would be cut by the compiler, which then keeps it in memory.
#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

// The vectors of columns in a tile of 6 rows whose sums stay in registers: AVX-512 has 32 of them, the
// others 16.
inline constexpr int kTileVecs = kLanes == 16 ? 4 : 2;

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t VecI __attribute__((vector_size(4 * kLanes)));
typedef std::uint32_t VecU __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t VecHalf __attribute__((vector_size(2 * kLanes)));
typedef std::int8_t VecByte __attribute__((vector_size(kLanes)));

// The constraint that asks the compiler for a vector in a register. Tests that emulate AVX-512 have another.
#ifndef SHOAL_REGISTER
#if defined(__AVX512F__)
#define SHOAL_REGISTER "v"
#elif defined(__aarch64__)
#define SHOAL_REGISTER "w"
#else
#define SHOAL_REGISTER "x"
#endif
#endif

inline Vec splat(float x) { return x - Vec{}; }  // x - 0 is x in every bit
inline VecU splat_u(std::uint32_t x) { return x - VecU{}; }

// 0, 1, 2 ...
inline VecI lane_numbers() {
#if defined(__AVX512F__)
  return VecI{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
  return VecI{0, 1, 2, 3, 4, 5, 6, 7};
#else
  return VecI{0, 1, 2, 3};
#endif
}

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

inline Vec load(const bfloat16* p) {
  VecHalf h;
  std::memcpy(&h, p, sizeof h);
#if defined(__AVX512F__)  // GCC 12 converts a vector in parts
  const auto wide = (VecU)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h);
#elif defined(__AVX2__)
  const auto wide = (VecU)_mm256_cvtepu16_epi32((__m128i)h);
#else
  const auto wide = __builtin_convertvector(h, VecU);
#endif
  return (Vec)(wide << 16);
}
inline Vec load(const std::int8_t* p) {
  VecByte bytes;
  std::memcpy(&bytes, p, sizeof bytes);
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)bytes));
#elif defined(__AVX2__)
  return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes)));
#else
  return __builtin_convertvector(bytes, Vec);
#endif
}
inline VecHalf narrowed(Vec v) {
#ifdef __AVX512BF16__
  return (VecHalf)_mm512_cvtneps_pbh((__m512)v);
#else
  const VecU bits = (VecU)v;
  const VecU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VecU nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector((VecU)(v == v ? (VecI)rounded : (VecI)nan), VecHalf);
#endif
}
inline void store(bfloat16* p, Vec v) {
  const VecHalf h = narrowed(v);
  std::memcpy(p, &h, sizeof h);
}

// Writes past the caches, which keep their lines and need not read this one. To a multiple of the vector's
// size; other threads see it behind end_streams().
template <typename T>
inline void stream(T* p, Vec v) {
#ifdef __AVX512F__
  if constexpr (sizeof(T) == sizeof(float)) return _mm512_stream_ps(p, (__m512)v);
#endif
  store(p, v);
}
inline void end_streams() {
#ifdef __AVX512F__
  _mm_sfence();
#endif
}

// The first n lanes, n in [0, kLanes); the others read as zero and are not written.
template <typename T>
inline Vec load_part(const T* p, std::int64_t n) {
  T tmp[kLanes] = {};
  std::memcpy(tmp, p, static_cast<std::size_t>(n) * sizeof(T));
  return load(tmp);
}
template <typename T>
inline void store_part(T* p, Vec v, std::int64_t n) {
  T tmp[kLanes];
  store(tmp, v);
  std::memcpy(p, tmp, static_cast<std::size_t>(n) * sizeof(T));
}

// Calls f(i, live) over [0, n) in vectors: with the index of the first lane, and how many are live.
template <typename F>
inline void for_lanes(std::int64_t n, F&& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, static_cast<std::int64_t>(kLanes));
  if (i < n) f(i, n - i);
}
template <typename T>
inline Vec load_n(const T* p, std::int64_t live) {
  return live == kLanes ? load(p) : load_part(p, live);
}
template <typename T>
inline void store_n(T* p, Vec v, std::int64_t live) {
  if (live == kLanes) {
    store(p, v);
  } else {
    store_part(p, v, live);
  }
}

// Fetches the row that a loop over rows reaches some rows later: rows lie too far apart for the processor to
// see what comes. It may be past the last one, where nothing is fetched.
template <bool kWrite = false, int kRows = 16, typename T>
void fetch_later_row(const T* row, std::int64_t stride, std::int64_t columns) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < columns; i += kLine) __builtin_prefetch(row + kRows * stride + i, kWrite);
}

// A mask of the first lanes.
inline VecI lanes_below(std::int64_t count) { return lane_numbers() < static_cast<std::int32_t>(count); }

inline Vec select(VecI mask, Vec a, Vec b) { return mask ? a : b; }
// a > b ? a : b and a < b ? a : b, so b where one of them is NaN. GCC makes two instructions of these.
inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE4_1__)
  return (Vec)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}
inline Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE4_1__)
  return (Vec)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}

// a * b + c, rounded once where the level has an instruction for it: all but SSE. Only what is written so is
// (-ffp-contract=off): a compiler that may contract does it in one copy of a loop and not in another, and
// then bits depend on how elements are cut.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
inline Vec fma(Vec a, Vec b, float c) { return fma(a, b, splat(c)); }
inline Vec fma(Vec a, float b, Vec c) { return fma(a, splat(b), c); }
inline Vec fma(Vec a, float b, float c) { return fma(a, splat(b), splat(c)); }

inline Vec sqrt(Vec v) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#elif defined(__AVX2__)
  return (Vec)_mm256_sqrt_ps((__m256)v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

// Lane sums and maxima in a fixed tree: lanes kLanes / 2 apart, then half of that, down to 1.
template <int kApart = kLanes / 2, typename F>
inline float fold_lanes(Vec v, F&& combine) {
  if constexpr (kApart == 0) {
    return v[0];
  } else {
    const auto partners = [v]<int... kLane>(std::integer_sequence<int, kLane...>) {
      return __builtin_shufflevector(v, v, (kLane ^ kApart)...);
    };
    return fold_lanes<kApart / 2>(combine(v, partners(std::make_integer_sequence<int, kLanes>())), combine);
  }
}
inline float sum(Vec v) {
  return fold_lanes(v, [](Vec a, Vec b) { return a + b; });
}
inline float max(Vec v) {
  return fold_lanes(v, [](Vec a, Vec b) { return max(a, b); });
}

// e^x within 2 ulp where the result is a normal float; gradual underflow below, +inf above; NaN stays NaN.
// x = n ln2 + r with |r| <= ln2 / 2, a polynomial for e^r, and n added to the exponent.
inline Vec exp(Vec x) {
  constexpr float kMagic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  // At these bounds the result is already 0 or infinite. The order of the arguments lets NaN pass through.
  const Vec clamped = min(splat(89.0f), max(splat(-105.0f), x));
  const Vec shifted = fma(clamped, 1.44269504f, kMagic);
  const Vec n = shifted - kMagic;
  const Vec r = fma(n, -1.42860677e-6f, fma(n, -0.693145752f, clamped));
  // Taylor's coefficients to degree 7: the remainder is r^8 / 8! < 6e-9 at |r| = 0.347.
  Vec p = splat(1.98412698e-4f);
  for (const float coefficient : {1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f, 0.166666667f, 0.5f})
    p = fma(p, r, coefficient);
  p = fma(p * r, r, r) + 1.0f;
#ifdef __AVX512F__
  return (Vec)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n);
#else
  // n is added in two halves, so that neither leaves the range of exponents on the way.
  const VecI exponent = (VecI)shifted - (VecI)splat(kMagic);
  const VecI half = exponent >> 1;
  return p * (Vec)((half + 127) << 23) * (Vec)((exponent - half + 127) << 23);
#endif
}

}  // namespace shoal::cpu
