#include "ops/cpu/few_rows.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>

#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"
#include "ops/int8.h"
#include "ops/with_type.h"

namespace shoal::cpu {
namespace {

// The first `live` elements of a vector; the others are zero.
template <typename V, typename T>
V load_vector(const T* at, std::int64_t live) {
  V vector{};
  std::memcpy(&vector, at, static_cast<std::size_t>(live) * sizeof *at);
  return vector;
}

// Vectors of a row of a type: how many elements each holds, and how their products are added to sums.
template <typename T>
struct Along {
  using Input = float;
  using Sums = Vec;
  using Total = float;
  static constexpr std::int64_t kCount = kLanes;
  static constexpr auto kMost = std::numeric_limits<std::int64_t>::max();  // terms that sums have room for
  template <typename From>
  static Vec load(const From* at, std::int64_t live) {
    return load_n(at, live);
  }
  static Vec multiply_add(Vec sum, Vec a, Vec b) { return fma(a, b, sum); }
  static float total(Vec sums) { return sum(sums); }
};
#ifdef __AVX512BF16__
template <>
struct Along<bfloat16> : Along<float> {  // vectors of pairs, which are added to one sum
  using Input = bfloat16;
  static constexpr std::int64_t kCount = 2 * kLanes;
  static Vec load(const bfloat16* at, std::int64_t live) { return load_vector<Vec>(at, live); }
  static Vec multiply_add(Vec sum, Vec a, Vec b) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif
// Levels of 8 bits times levels of 15. Their sums are whole numbers, so they are exact, in any order.
template <>
struct Along<std::int8_t> {
  using Input = std::int16_t;
  using Sums = VecI;  // of pairs
  using Total = std::int64_t;
  static constexpr std::int64_t kCount = 2 * kLanes;
  static constexpr int kMostInput = (1 << 14) - 1;
  static constexpr std::int64_t kMost = 4096;
  static_assert(kMost / kCount * 2 * Int8Rows::kMost * kMostInput < std::numeric_limits<std::int32_t>::max());
  typedef std::int16_t Levels __attribute__((vector_size(4 * kLanes)));
  typedef std::int8_t Bytes __attribute__((vector_size(2 * kLanes)));

  static Levels load(const std::int16_t* at, std::int64_t live) { return load_vector<Levels>(at, live); }
  static Levels load(const std::int8_t* at, std::int64_t live) {
    const auto bytes = load_vector<Bytes>(at, live);
#if defined(__AVX512BW__)
    return (Levels)_mm512_cvtepi8_epi16((__m256i)bytes);
#elif defined(__AVX2__)
    return (Levels)_mm256_cvtepi8_epi16((__m128i)bytes);
#else
    return __builtin_convertvector(bytes, Levels);
#endif
  }
  static VecI multiply_add(VecI sums, Levels a, Levels b) {
#if defined(__AVX512BW__)
    return sums + (VecI)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return sums + (VecI)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE4_1__)
    return sums + (VecI)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sums + ((VecI)a << 16 >> 16) * ((VecI)b << 16 >> 16) + ((VecI)a >> 16) * ((VecI)b >> 16);
#endif
  }
  static std::int64_t total(VecI sums) {
    std::int64_t total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += sums[lane];
    return total;
  }
};

// A product of weights of type T.
template <typename T>
struct Product {
  using Sum = Along<T>;
  static constexpr std::int64_t kGroup = 24;  // outputs that are written together: whole tiles of any height
  Tensor weights, y, bias;
  std::int64_t n, k;
  const typename Sum::Input* x;
  std::array<float, kFewRows> steps = {};  // of x in whole numbers

  // to [kRows][kGroup] = outputs [first, first + kOutputs). Every element is the sum of a vector that went
  // through k from its beginning, whatever the tile.
  template <std::size_t kRows, std::size_t kOutputs>
  void tile(std::int64_t first, float* to) const {
    const std::int64_t stride = weights.columns();
    const T* w = weights.as<T>() + first * stride;
    // Fetched in the order of memory, at least a tile ahead. For outputs one by one it is what lies behind
    // the end of a page, where the processor stops; where two vectors share a line, both would ask for it,
    // which costs more.
    constexpr bool kInOrder = kRows <= 2 && kOutputs == 1;
    constexpr bool kFetch = !kInOrder || sizeof(T) * Sum::kCount >= 64;
    constexpr std::int64_t kBytes = kInOrder ? 2048 : kRows > 2 ? 8192 : 16384;
    constexpr std::int64_t kAhead = kBytes / static_cast<std::int64_t>(sizeof(T));
    const T* next = w + (kInOrder ? kAhead : std::max(kAhead, static_cast<std::int64_t>(kOutputs) * stride));
    std::array<std::array<typename Sum::Total, kRows>, kOutputs> totals = {};
    for (std::int64_t at = 0; at < k;) {
      const std::int64_t end = k - at > Sum::kMost ? at + Sum::kMost : k;
      std::array<std::array<typename Sum::Sums, kRows>, kOutputs> sums = {};
      const auto add = [&](std::int64_t live) {
        std::array<decltype(Sum::load(w, live)), kOutputs> vectors;
        for (std::size_t o = 0; o < kOutputs; ++o) {
          const auto output = static_cast<std::int64_t>(o);
          if constexpr (kFetch) __builtin_prefetch(next + at * kOutputs + output * Sum::kCount, 0, 2);
          vectors[o] = Sum::load(w + output * stride + at, live);
        }
        for (std::size_t r = 0; r < kRows; ++r) {
          auto input = Sum::load(x + static_cast<std::int64_t>(r) * k + at, live);
          // In a register. A product with each output would read it again, which floats hide behind memory.
          if constexpr (std::is_integral_v<T> && kLanes >= 16) asm("" : "+" SHOAL_REGISTER(input));
          for (std::size_t o = 0; o < kOutputs; ++o)
            sums[o][r] = Sum::multiply_add(sums[o][r], vectors[o], input);
        }
        at += live;
      };
      while (at + Sum::kCount <= end) add(Sum::kCount);
      if (at < end) add(end - at);
      for (std::size_t o = 0; o < kOutputs; ++o) {
        for (std::size_t r = 0; r < kRows; ++r) totals[o][r] += Sum::total(sums[o][r]);
      }
    }
    for (std::size_t o = 0; o < kOutputs; ++o) {
      const std::int64_t column = first + static_cast<std::int64_t>(o);
      for (std::size_t r = 0; r < kRows; ++r) {
        float sum = static_cast<float>(totals[o][r]);
        if constexpr (std::is_integral_v<T>) sum *= Int8Rows(weights).step(column) * steps[r];
        to[r * kGroup + o] = sum;
      }
    }
  }

  // Writes a group's first outputs.
  void write(const float* sums, std::int64_t rows, std::int64_t first, std::int64_t count) const {
    with_types(bias ? bias.dtype : y.dtype, y.dtype, [&]<typename X, typename Out>() {
      for (std::int64_t r = 0; r < rows; ++r, sums += kGroup) {
        Out* to = y.as<Out>() + r * n + first;
        for (std::int64_t i = 0; i < count; ++i)
          to[i] = from_float<Out>(sums[i] + (bias ? to_float(bias.as<X>()[first + i]) : 0.0f));
      }
    });
  }

  // One or two rows wait for memory, which is fastest when it is read in its order, an output at a time: the
  // processor fetches ahead by itself then. But one output is a single chain of sums, and reads all of x.
  // With the longest vectors it keeps up, while x stays in the first-level cache; else two outputs do, or
  // four of bytes, which are as near as one of floats. More rows have as many outputs as registers hold sums.
  template <std::size_t kRows>
  void columns(std::int64_t begin, std::int64_t end) const {
    constexpr std::size_t kSums = 6 * kTileVecs;
    constexpr auto kCached = static_cast<std::int64_t>(16384 / (kRows * sizeof *x));
    if constexpr (kRows > 2) {
      columns_by<kRows, std::min<std::size_t>(4, kSums / kRows)>(begin, end);
    } else if (kLanes >= 16 && k <= kCached) {
      columns_by<kRows, 1>(begin, end);
    } else {
      columns_by<kRows, sizeof(T) == 1 ? 4 : 2>(begin, end);
    }
  }

  template <std::size_t kRows, std::size_t kOutputs>
  void columns_by(std::int64_t begin, std::int64_t end) const {
    static_assert(kGroup % kOutputs == 0);
    float sums[kRows][kGroup];
    for (std::int64_t first = begin; first < end; first += kGroup) {
      const std::int64_t count = std::min(kGroup, end - first);
      std::int64_t at = 0;
      for (; at + static_cast<std::int64_t>(kOutputs) <= count; at += kOutputs)
        tile<kRows, kOutputs>(first + at, &sums[0][at]);
      for (; at < count; ++at) tile<kRows, 1>(first + at, &sums[0][at]);
      write(&sums[0][0], kRows, first, count);
    }
  }
};

template <typename T>
void run(const Product<T>& product, std::int64_t rows, ThreadTeam& team) {
  constexpr std::int64_t kWorthwhile = 1 << 15;  // weights, to wake a thread
  constexpr std::int64_t kGroup = Product<T>::kGroup;
  const std::int64_t block = product.n * product.k < kWorthwhile
                                 ? product.n
                                 : std::max(kGroup, kWorthwhile / product.k / kGroup * kGroup);
  const auto with_rows = [&]<std::size_t... kRows>(std::index_sequence<kRows...>) {
    for_blocks(team, product.n, block, [&](std::int64_t begin, std::int64_t end) {
      (void)((rows == static_cast<std::int64_t>(kRows + 1) &&
              (product.template columns<kRows + 1>(begin, end), true)) ||
             ...);
    });
  };
  with_rows(std::make_index_sequence<static_cast<std::size_t>(kFewRows)>());
}

}  // namespace

void few_rows_product(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias, ThreadTeam& team,
                      float* scratch) {
  const std::int64_t rows = x.rows(), n = w.rows(), k = x.columns();
  with_type(x.dtype, [&]<typename X>() {
    const auto run_with = [&]<typename T>() {
      using Sum = Along<T>;
      using Input = typename Sum::Input;
      Product<T> product{w, y, bias, n, k, x.as<Input>()};
      if constexpr (std::is_integral_v<T>) {
        auto* levels = reinterpret_cast<std::int16_t*>(scratch);
        for (std::int64_t row = 0; row < rows; ++row) {
          product.steps[static_cast<std::size_t>(row)] =
              to_levels(levels + row * k, x.as<X>() + row * k, k, Sum::kMostInput);
        }
        product.x = levels;
      } else if constexpr (sizeof(T) != sizeof(Input)) {
        for_lanes(rows * k, [&](std::int64_t at, std::int64_t live) {
          store_n(scratch + at, load_n(x.as<T>() + at, live), live);
        });
        product.x = scratch;
      }
      run(product, rows, team);
    };
    w.dtype == DType::i8 ? run_with.template operator()<std::int8_t>() : run_with.template operator()<X>();
  });
}

}  // namespace shoal::cpu
