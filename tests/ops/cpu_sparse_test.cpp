// The largest numbers of blocks, of the cpu backend against the oracle.
#include "ops/sparse.h"

#include "ops/conformance.h"

namespace shoal::test {
namespace {

// Blocks, and numbers that are taken of each.
class CpuSparse : public Conformance<std::pair<std::int64_t, std::int64_t>> {
 protected:
  std::int64_t blocks_ = GetParam().first, count_ = GetParam().second, n_ = blocks_ * kSparseBlock;
  // Rounded to few bits, so that some are equal in magnitude, and with zeros.
  Values numbers(std::uint32_t which) const {
    Values x = normal_values(n_, which, DType::bf16);
    for (std::size_t i = 0; i < x.size(); i += 7) x[i] += i % 2 ? 0x1p-12 : 0;
    for (std::size_t i = 0; i < x.size(); i += 5) x[i] = 0;
    return x;
  }
};

TEST_P(CpuSparse, TakesTheLargestAndKeepsTheRest) {
  const Values x = numbers(1);
  const auto run = [&](const Side& side) {
    const Buffer taken = side.ints({blocks_, count_}), rest = side.full({n_}, x);
    side.backend.take_largest(taken, rest);
    return std::array{taken.values(), rest.values()};
  };
  const auto [taken, rest] = run(cpu());
  const auto [expected, expected_rest] = run(oracle());
  EXPECT_TRUE((taken == expected).min());
  EXPECT_TRUE((rest == expected_rest).min()) << "differences of neighbours are exact";

  // The taken numbers and the rest are the whole, and no number of the rest is larger than a taken one.
  Values whole = rest;
  for (std::int64_t block = 0; block < blocks_; ++block) {
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t k = 0; k < count_; ++k) {
      const auto one = static_cast<std::int32_t>(taken[static_cast<std::size_t>(block * count_ + k)]);
      whole[static_cast<std::size_t>(block * kSparseBlock + position_of(one))] += to_float(value_of(one));
      least = std::min<double>(least, std::abs(to_float(value_of(one))));
    }
    const Values left = rest[std::slice(static_cast<std::size_t>(block * kSparseBlock), kSparseBlock, 1)];
    if (count_ == kSparseBlock) continue;
    EXPECT_LE(std::abs(left).max(), least * (1 + 0x1p-7));
  }
  EXPECT_TRUE((whole == x).min());
}

// An addition, and a product before it.
TEST_P(CpuSparse, AddsWhatWasTaken) {
  const Values x = numbers(1), y = numbers(2);
  const auto run = [&](const Side& side) {
    const Buffer taken = side.ints({blocks_, count_}), sum = side.full({n_}, y);
    side.backend.take_largest(taken, side.full({n_}, x));
    side.backend.add_taken(sum, taken, 0.3f);
    return sum.values();
  };
  expect_within(run(cpu()), run(oracle()), gamma(2) * (std::abs(y) + 0.3 * std::abs(x)) + kSmallest);
}

// Blocks whose largest number is everything from the least to the most, and one of zeros.
class CpuInt4 : public Conformance<std::int64_t> {
 protected:
  std::int64_t blocks_ = GetParam(), n_ = blocks_ * kSparseBlock;
  Values numbers() const {
    Values x = normal_values(n_, 1, DType::f32);
    for (std::int64_t block = 0; block < blocks_; ++block) {
      const double factor = block == 1 ? 0 : std::pow(2.0, -145 + 67 * (block % 5));
      for (std::int64_t i = 0; i < kSparseBlock; ++i)
        x[static_cast<std::size_t>(block * kSparseBlock + i)] *= factor;
    }
    for (double& number : x) number = static_cast<float>(number);
    return x;
  }
};

TEST_P(CpuInt4, TakesTheNearestLevelsAndKeepsTheRest) {
  const Values x = numbers();
  const auto run = [&](const Side& side) {
    const Buffer packed = side.ints({blocks_, kInt4Words}), rest = side.full({n_}, x),
                 sum = side.full({n_}, x);
    side.backend.take_int4(packed, rest);
    side.backend.add_int4(sum, packed);
    return std::array{packed.values(), rest.values(), sum.values()};
  };
  const auto [packed, rest, sum] = run(cpu());
  const auto [expected, expected_rest, expected_sum] = run(oracle());
  EXPECT_TRUE((packed == expected).min());
  EXPECT_TRUE((rest == expected_rest).min());
  expect_within(sum, expected_sum, 0x1p-24 * std::abs(expected_sum) + kSmallest);

  for (std::int64_t block = 0; block < blocks_; ++block) {
    const std::slice here(static_cast<std::size_t>(block * kSparseBlock), kSparseBlock, 1);
    const Values whole = x[here], left = rest[here];
    const double step = std::abs(whole).max() / 7;
    EXPECT_LE(std::abs(left).max(), step / 2 * (1 + 0x1p-18) + 0x1p-146) << "block " << block;
  }
}

TEST_P(CpuInt4, WhatIsNotFiniteSpoilsItsBlock) {
  for (const float spoiled : {std::numeric_limits<float>::quiet_NaN(),
                              -std::numeric_limits<float>::infinity(), std::bit_cast<float>(0x7fffffffu)}) {
    Values x = numbers();
    x[static_cast<std::size_t>(n_ - 3)] = spoiled;
    const Buffer packed = cpu().ints({blocks_, kInt4Words}), rest = cpu().full({n_}, x),
                 sum = cpu().full({n_}, 0 * numbers());
    cpu().backend.take_int4(packed, rest);
    cpu().backend.add_int4(sum, packed);
    const Values values = sum.values();
    for (std::int64_t i = 0; i < n_; ++i)
      ASSERT_EQ(std::isnan(values[static_cast<std::size_t>(i)]), i >= n_ - kSparseBlock) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuInt4, testing::Values(1, 5, 70));

INSTANTIATE_TEST_SUITE_P(Shapes, CpuSparse,
                         testing::Values(std::pair(1, 1), std::pair(1, 1024), std::pair(3, 20),
                                         std::pair(70, 5)));

}  // namespace
}  // namespace shoal::test
