// The instructions of AVX-512 that the kernels name, for processors that lack them: included before a
// kernel's file, it compiles the level avx512 (with SHOAL_EMULATES_BF16: avx512_bf16 and amx) of AVX2. All
// other arithmetic of a level is the compiler's on its vectors, of which it makes two of 8 lanes each. Each
// function does what Intel's Software Developer's Manual, volume 2, says of its instruction; "maskz" ones set
// the lanes whose bit of the mask is 0 to zero.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cfloat>
#include <cstring>

namespace shoal::emulated {

// Lane i of the result is of(i).
template <typename V, typename F>
inline V each_lane(F&& of) {
  V result;
  for (unsigned i = 0; i < sizeof result / sizeof result[0]; ++i) result[i] = of(i);
  return result;
}

typedef float F16 __attribute__((vector_size(64)));
typedef int I16 __attribute__((vector_size(64)));
typedef short I16x32 __attribute__((vector_size(64)));
typedef unsigned short U16x32 __attribute__((vector_size(64)));
typedef unsigned short U16x16 __attribute__((vector_size(32)));
typedef signed char I8x16 __attribute__((vector_size(16)));
typedef signed char I8x32 __attribute__((vector_size(32)));

inline bool set(unsigned mask, unsigned lane) { return (mask >> lane & 1u) != 0; }

// Memory of lanes that are not set is not read.
template <typename V, typename T>
inline V load(unsigned mask, const void* from) {
  return each_lane<V>([=](unsigned i) {
    T x = 0;
    if (set(mask, i)) std::memcpy(&x, static_cast<const char*>(from) + i * sizeof x, sizeof x);
    return x;
  });
}
inline __m512 loadu_ps(__mmask16 mask, const void* from) { return load<F16, float>(mask, from); }
inline __m512i loadu_epi16_512(__mmask32 mask, const void* from) {
  return (__m512i)load<U16x32, unsigned short>(mask, from);
}
inline __m256i loadu_epi16_256(__mmask16 mask, const void* from) {
  return (__m256i)load<U16x16, unsigned short>(mask, from);
}

inline __m512i cvtepu16_epi32(__mmask16 mask, __m256i x) {
  return (__m512i)each_lane<I16>([=](unsigned i) { return set(mask, i) ? ((U16x16)x)[i] : 0; });
}
inline __m512i cvtepi8_epi32(__mmask16 mask, __m128i x) {
  return (__m512i)each_lane<I16>([=](unsigned i) { return set(mask, i) ? ((I8x16)x)[i] : 0; });
}
inline __m512 cvtepi32_ps(__mmask16 mask, __m512i x) {
  return each_lane<F16>([=](unsigned i) { return set(mask, i) ? static_cast<float>(((I16)x)[i]) : 0; });
}
inline __m512i cvtepi8_epi16(__m256i x) { return (__m512i) __builtin_convertvector((I8x32)x, I16x32); }
inline __m512i set1_epi32(int x) {
  return (__m512i)each_lane<I16>([=](unsigned) { return x; });
}

// In two instructions, since most of the time of the tests goes here.
struct Halves {
  __m256 low, high;
};
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  const auto x = std::bit_cast<Halves>(a), y = std::bit_cast<Halves>(b), z = std::bit_cast<Halves>(c);
  return std::bit_cast<__m512>(
      Halves{_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high)});
}

// The second argument where either is NaN, or both are zero.
inline __m512 max_ps(__mmask16 mask, __m512 a, __m512 b) {
  return each_lane<F16>([=](unsigned i) { return set(mask, i) ? (a[i] > b[i] ? a[i] : b[i]) : 0; });
}
inline __m512 min_ps(__mmask16 mask, __m512 a, __m512 b) {
  return each_lane<F16>([=](unsigned i) { return set(mask, i) ? (a[i] < b[i] ? a[i] : b[i]) : 0; });
}
inline __m512 sqrt_ps(__mmask16 mask, __m512 x) {
  return each_lane<F16>([=](unsigned i) { return set(mask, i) ? __builtin_sqrtf(x[i]) : 0; });
}
// a * 2^floor(b), rounded once. For a finite b and a NaN; other special cases are not those of the
// instruction.
inline __m512 scalef_ps(__mmask16 mask, __m512 a, __m512 b) {
  return each_lane<F16>([=](unsigned i) {
    return set(mask, i) ? static_cast<float>(__builtin_ldexp(a[i], static_cast<int>(__builtin_floorf(b[i]))))
                        : 0;
  });
}

// Bit 5 of a lane's index takes it from b.
inline __m512i permutex2var_epi16(__m512i a, __m512i index, __m512i b) {
  return (__m512i)each_lane<U16x32>([=](unsigned i) {
    const unsigned from = ((U16x32)index)[i];
    return from & 32u ? ((U16x32)b)[from & 31u] : ((U16x32)a)[from & 31u];
  });
}
inline __m512i madd_epi16(__m512i a, __m512i b) {
  return (__m512i)each_lane<I16>([x = (I16x32)a, y = (I16x32)b](unsigned i) {
    return x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
  });
}

// Denormal numbers are zeros, as arguments and as results.
inline float flushed(float x) { return __builtin_fabsf(x) < FLT_MIN ? __builtin_copysignf(0, x) : x; }
inline float widened(short x) {
  const auto bits = static_cast<unsigned>(static_cast<unsigned short>(x)) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return flushed(wide);
}
// The odd lanes' products are added first.
inline __m512 dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  const auto x = (I16x32)a, y = (I16x32)b;
  return each_lane<F16>([=](unsigned i) {
    const float odd = flushed(__builtin_fmaf(widened(x[2 * i + 1]), widened(y[2 * i + 1]), flushed(sum[i])));
    return flushed(__builtin_fmaf(widened(x[2 * i]), widened(y[2 * i]), odd));
  });
}
inline __m256bh cvtneps_pbh(__m512 x) {
  return (__m256bh)each_lane<U16x16>([=](unsigned i) -> unsigned short {
    const float lane = flushed(x[i]);
    unsigned bits;
    std::memcpy(&bits, &lane, sizeof bits);
    if (lane != lane) return static_cast<unsigned short>(bits >> 16 | 0x40u);
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  });
}

inline void stream_ps(float* to, __m512 x) { std::memcpy(to, &x, sizeof x); }

// The tile registers of a thread, and their shapes.
struct TileRegisters {
  unsigned char rows[8], bytes[8];
  unsigned char data[8][16][64];
};
inline thread_local TileRegisters tiles;

}  // namespace shoal::emulated

// In the place of those of ops/cpu/amx.h.
namespace shoal::cpu {

// The palette's rows and bytes of a row stand at 48 and 16.
inline void configure_tiles(const void* shapes) {
  const auto* from = static_cast<const unsigned char*>(shapes);
  emulated::tiles = {};
  for (int tile = 0; tile < 8; ++tile) {
    emulated::tiles.rows[tile] = from[48 + tile];
    emulated::tiles.bytes[tile] = from[16 + 2 * tile];
  }
}
inline void release_tiles() { emulated::tiles = {}; }

template <int kTile>
void zero_tile() {
  std::memset(emulated::tiles.data[kTile], 0, sizeof emulated::tiles.data[kTile]);
}
template <int kTile>
void load_tile(const void* from, long stride) {
  zero_tile<kTile>();
  for (int row = 0; row < emulated::tiles.rows[kTile]; ++row) {
    std::memcpy(emulated::tiles.data[kTile][row], static_cast<const char*>(from) + row * stride,
                emulated::tiles.bytes[kTile]);
  }
}
template <int kTile>
void stream_tile(const void* from, long stride) {
  load_tile<kTile>(from, stride);
}
template <int kTile>
void store_tile(void* to, long stride) {
  for (int row = 0; row < emulated::tiles.rows[kTile]; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, emulated::tiles.data[kTile][row],
                emulated::tiles.bytes[kTile]);
  }
}
// Sums of the terms with even and with odd numbers, which are added at the end.
template <int kSum, int kLeft, int kRight>
void multiply_tiles() {
  using emulated::flushed, emulated::widened;
  auto& registers = emulated::tiles;
  for (int row = 0; row < registers.rows[kLeft]; ++row) {
    float sums[16];
    short left[32];
    std::memcpy(sums, registers.data[kSum][row], sizeof sums);
    std::memcpy(left, registers.data[kLeft][row], sizeof left);
    for (int column = 0; column < registers.bytes[kRight] / 4; ++column) {
      float even = 0, odd = 0;
      for (int unit = 0; unit < registers.bytes[kLeft] / 4; ++unit) {
        short right[2];
        std::memcpy(right, registers.data[kRight][unit] + 4 * column, sizeof right);
        even = flushed(__builtin_fmaf(widened(left[2 * unit]), widened(right[0]), even));
        odd = flushed(__builtin_fmaf(widened(left[2 * unit + 1]), widened(right[1]), odd));
      }
      sums[column] = flushed(flushed(sums[column]) + flushed(even + odd));
    }
    std::memcpy(registers.data[kSum][row], sums, sizeof sums);
  }
}

}  // namespace shoal::cpu

#define SHOAL_EMULATES_TILES
#define __AVX512F__ 1
#define __AVX512BW__ 1
#ifdef SHOAL_EMULATES_BF16
#define __AVX512BF16__ 1
#endif
#define SHOAL_REGISTER "m"  // no register holds 16 lanes (ops/cpu/simd.h)

#define _mm512_maskz_loadu_ps shoal::emulated::loadu_ps
#define _mm512_maskz_loadu_epi16 shoal::emulated::loadu_epi16_512
#define _mm256_maskz_loadu_epi16 shoal::emulated::loadu_epi16_256
#define _mm512_maskz_cvtepu16_epi32 shoal::emulated::cvtepu16_epi32
#define _mm512_maskz_cvtepi8_epi32 shoal::emulated::cvtepi8_epi32
#define _mm512_maskz_cvtepi32_ps shoal::emulated::cvtepi32_ps
#define _mm512_cvtepi8_epi16 shoal::emulated::cvtepi8_epi16
#define _mm512_set1_epi32 shoal::emulated::set1_epi32
#define _mm512_fmadd_ps shoal::emulated::fmadd_ps
#define _mm512_maskz_max_ps shoal::emulated::max_ps
#define _mm512_maskz_min_ps shoal::emulated::min_ps
#define _mm512_maskz_sqrt_ps shoal::emulated::sqrt_ps
#define _mm512_maskz_scalef_ps shoal::emulated::scalef_ps
#define _mm512_permutex2var_epi16 shoal::emulated::permutex2var_epi16
#define _mm512_madd_epi16 shoal::emulated::madd_epi16
#define _mm512_dpbf16_ps shoal::emulated::dpbf16_ps
#define _mm512_cvtneps_pbh shoal::emulated::cvtneps_pbh
#define _mm512_stream_ps shoal::emulated::stream_ps
