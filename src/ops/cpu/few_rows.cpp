#include "ops/cpu/few_rows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"
#include "ops/with_type.h"

namespace shoal::cpu {
namespace {

// Vectors of a row of a type: how many elements each holds, and how their products are added to sums.
template <typename T>
struct Along {
  using Input = float;
  static constexpr std::int64_t kCount = kLanes;
  template <typename From>
  static Vec load(const From* at, std::int64_t live) {
    return load_n(at, live);
  }
  static Vec multiply_add(Vec sum, Vec a, Vec b) { return sum + a * b; }
};
#ifdef __AVX512BF16__
template <>
struct Along<bfloat16> {  // vectors of pairs, which are added to one sum
  using Input = bfloat16;
  static constexpr std::int64_t kCount = 2 * kLanes;
  static Vec load(const bfloat16* at, std::int64_t live) {
    Vec pairs{};
    std::memcpy(&pairs, at, static_cast<std::size_t>(live) * sizeof *at);
    return pairs;
  }
  static Vec multiply_add(Vec sum, Vec a, Vec b) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

template <typename T, typename Out>
struct Product {
  using Sum = Along<T>;
  Out* y;
  const typename Sum::Input* x;
  const T* w;
  const T* bias;  // or null
  std::int64_t n, k;

  // Outputs [first, first + kOutputs) of kRows rows. Every element is the sum of a vector that went through k
  // from its beginning, whatever the tile.
  template <std::size_t kRows, std::size_t kOutputs>
  void tile(std::int64_t first) const {
    std::array<std::array<Vec, kRows>, kOutputs> sums = {};
    const T* next = w + (first + kOutputs) * k;  // the next tile's weights, fetched in the order of memory
    const auto add = [&](std::int64_t at, std::int64_t live) {
      std::array<Vec, kOutputs> weights;
      for (std::size_t o = 0; o < kOutputs; ++o) {
        const auto output = static_cast<std::int64_t>(o);
        __builtin_prefetch(next + at * kOutputs + output * Sum::kCount, 0, 2);
        weights[o] = Sum::load(w + (first + output) * k + at, live);
      }
      for (std::size_t r = 0; r < kRows; ++r) {
        const Vec input = Sum::load(x + static_cast<std::int64_t>(r) * k + at, live);
        for (std::size_t o = 0; o < kOutputs; ++o)
          sums[o][r] = Sum::multiply_add(sums[o][r], weights[o], input);
      }
    };
    std::int64_t at = 0;
    for (; at + Sum::kCount <= k; at += Sum::kCount) add(at, Sum::kCount);
    if (at < k) add(at, k - at);
    for (std::size_t o = 0; o < kOutputs; ++o) {
      const std::int64_t column = first + static_cast<std::int64_t>(o);
      const float added = bias ? to_float(bias[column]) : 0.0f;
      for (std::size_t r = 0; r < kRows; ++r)
        y[static_cast<std::int64_t>(r) * n + column] = from_float<Out>(sum(sums[o][r]) + added);
    }
  }

  template <std::size_t kRows>
  void columns(std::int64_t begin, std::int64_t end) const {
    // One or two rows wait for memory, which is fastest when it is read in order; narrow vectors wait for
    // their sums as well, and need a second one. More rows have as many sums as registers hold.
    constexpr std::size_t kSums = 6 * kTileVecs;
    constexpr std::size_t kOutputs =
        kRows <= 2 ? (kLanes == 16 ? 1 : 2) : std::min<std::size_t>(4, kSums / kRows);
    std::int64_t at = begin;
    for (; at + static_cast<std::int64_t>(kOutputs) <= end; at += kOutputs) tile<kRows, kOutputs>(at);
    for (; at < end; ++at) tile<kRows, 1>(at);
  }
};

template <typename T, typename Out>
void run(const Product<T, Out>& product, std::int64_t rows, ThreadTeam& team) {
  constexpr std::int64_t kWorthwhile = 1 << 15;  // weights, to wake a thread
  const std::int64_t block = product.n * product.k < kWorthwhile
                                 ? product.n
                                 : std::max<std::int64_t>(24, kWorthwhile / product.k / 24 * 24);
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
  const std::int64_t rows = x.rows(), n = w.rows(), k = w.columns();
  with_type(w.dtype, [&]<typename T>() {
    using Input = typename Along<T>::Input;
    const auto* inputs = x.as<Input>();
    if constexpr (sizeof(T) != sizeof(Input)) {
      for_lanes(rows * k, [&](std::int64_t at, std::int64_t live) {
        store_n(scratch + at, load_n(x.as<T>() + at, live), live);
      });
      inputs = scratch;
    }
    with_type(y.dtype, [&]<typename Out>() {
      run(Product<T, Out>{y.as<Out>(), inputs, w.as<T>(), bias ? bias.as<T>() : nullptr, n, k}, rows, team);
    });
  });
}

}  // namespace shoal::cpu
