#include "ops/cpu/few_rows.h"

#include <array>
#include <utility>

#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"
#include "ops/with_type.h"

namespace shoal::cpu {
namespace {

template <typename T, typename Out>
struct Product {
  Out* y;
  const float* x;
  const T* w;
  const T* bias;  // or null
  std::int64_t n, k;

  // Outputs [first, first + kOutputs) of kRows rows. Every element is the sum of a vector that went through k
  // from its beginning, whatever the tile.
  template <std::size_t kRows, std::size_t kOutputs>
  void tile(std::int64_t first) const {
    std::array<std::array<Vec, kRows>, kOutputs> sums = {};
    const auto add = [&](std::int64_t at, std::int64_t live) {
      std::array<Vec, kOutputs> weights;
      for (std::size_t o = 0; o < kOutputs; ++o)
        weights[o] = load_n(w + (first + static_cast<std::int64_t>(o)) * k + at, live);
      for (std::size_t r = 0; r < kRows; ++r) {
        const Vec input = load_n(x + static_cast<std::int64_t>(r) * k + at, live);
        for (std::size_t o = 0; o < kOutputs; ++o) sums[o][r] += weights[o] * input;
      }
    };
    std::int64_t at = 0;
    for (; at + kLanes <= k; at += kLanes) add(at, kLanes);
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
    // The registers hold these sums, and the sums are enough to hide the latency of a multiply-add.
    constexpr std::size_t kOutputs = kRows == 1 ? 8 : kRows == 2 ? 6 : kRows <= 6 ? 4 : 3;
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
  const float* inputs = x.as<float>();
  if (x.dtype != DType::f32) {
    for_lanes(rows * k, [&](std::int64_t at, std::int64_t live) {
      store_n(scratch + at, load_n(x.as<bfloat16>() + at, live), live);
    });
    inputs = scratch;
  }
  with_type(w.dtype, [&]<typename T>() {
    with_type(y.dtype, [&]<typename Out>() {
      run(Product<T, Out>{y.as<Out>(), inputs, w.as<T>(), bias ? bias.as<T>() : nullptr, n, k}, rows, team);
    });
  });
}

}  // namespace shoal::cpu
