// Tests of reductions over the buffers of several ranks.
#include "comm/reduce.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"

namespace shoal::test {
namespace {

using testing::Each;

template <typename T>
std::vector<T> reduced(DType dtype, ReduceOp op, std::vector<std::vector<T>> xs) {
  std::vector<const std::byte*> ins;
  for (const auto& x : xs) ins.push_back(reinterpret_cast<const std::byte*>(x.data()));
  std::vector<T> out(xs[0].size());
  std::byte* outs[] = {reinterpret_cast<std::byte*>(out.data())};
  reduce(outs, 0, ins, 0, static_cast<std::int64_t>(out.size()), dtype, op);
  return out;
}

TEST(Reduce, AddsInTheOrderOfRanks) {
  constexpr float big = 1 << 24;  // big + 1 is big in float32
  const std::size_t n = 1234;
  const auto ones = std::vector<float>(n, 1), bigs = std::vector<float>(n, big);
  EXPECT_THAT(reduced<float>(DType::f32, ReduceOp::sum, {bigs, ones, ones}), Each(big));
  EXPECT_THAT(reduced<float>(DType::f32, ReduceOp::sum, {ones, ones, bigs}), Each(big + 2));
}

TEST(Reduce, ANaNAnywhereIsSeen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t bad = 0; bad < 3; ++bad) {
    std::vector<std::vector<float>> xs(3, std::vector<float>(100, 1));
    xs[bad].assign(100, nan);
    for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
      for (float value : reduced<float>(DType::f32, op, xs)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(Reduce, IntegersWrapAround) {
  constexpr auto top = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::vector<std::int32_t>> xs{{top}, {1}};
  EXPECT_THAT(reduced<std::int32_t>(DType::i32, ReduceOp::sum, xs), Each(std::numeric_limits<int>::min()));
}

TEST(Reduce, TakesPartsAndWritesInPlace) {
  std::vector<float> a(3000, 1), b(3000, 2);
  const std::byte* xs[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  std::byte* outs[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  reduce(outs, 100, xs, 100, 2000, DType::f32, ReduceOp::sum);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool inside = i >= 100 && i < 2100;
    EXPECT_EQ(a[i], inside ? 3 : 1) << i;
    EXPECT_EQ(b[i], inside ? 3 : 2) << i;
  }
}

}  // namespace
}  // namespace shoal::test
