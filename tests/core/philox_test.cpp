// Philox against the known answers of its authors' Random123 library, and what is drawn from it.
#include "core/philox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace shoal {
namespace {

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes}, {kOnes, kOnes, kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, KeysOfSeedsAndStreamsDiffer) {
  std::map<std::uint64_t, int> seen;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    for (const PhiloxStream stream : {PhiloxStream::init, PhiloxStream::dropout, PhiloxStream::batch,
                                      PhiloxStream::shuffle, PhiloxStream::sampling, PhiloxStream::corpus}) {
      const PhiloxKey key = philox_key(seed, stream);
      EXPECT_EQ(++seen[static_cast<std::uint64_t>(key.hi) << 32 | key.lo], 1);
    }
  }
}

TEST(Philox, UnitsAndBoundsCoverTheirRange) {
  EXPECT_EQ(to_unit({0, 0, 0, 0}), 0);
  EXPECT_EQ(to_unit({0xffffffff, 0xffffffff, 0, 0}), 1 - 0x1p-53);
  EXPECT_EQ(to_below({0, 0, 0, 0}, 10), 0);
  EXPECT_EQ(to_below({0xffffffff, 0xffffffff, 0, 0}, 10), 9);
  EXPECT_EQ(to_below({0, 0x80000000, 0, 0}, 10), 5);
}

TEST(Philox, NormalHasTheMomentsOfANormal) {
  const int n = 200000;
  double sums[5] = {};
  for (std::uint32_t i = 0; i < n; ++i) {
    const double x = to_normal(philox(philox_key(1, PhiloxStream::init), {i, 0, 0, 0}));
    ASSERT_TRUE(std::isfinite(x));
    for (int power = 1; power <= 4; ++power) sums[power] += std::pow(x, power) / n;
  }
  // The mean of x^k has the variance (E x^2k - (E x^k)^2) / n: 1, 2, 15 and 96 over n. Five standard
  // deviations.
  EXPECT_NEAR(sums[1], 0, 5 * std::sqrt(1.0 / n));
  EXPECT_NEAR(sums[2], 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(sums[3], 0, 5 * std::sqrt(15.0 / n));
  EXPECT_NEAR(sums[4], 3, 5 * std::sqrt(96.0 / n));
}

TEST(Philox, NormalIsFiniteForEveryExtremeBlock) {
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_TRUE(std::isfinite(to_normal({0, 0, 0, 0})));
  EXPECT_TRUE(std::isfinite(to_normal({kOnes, kOnes, kOnes, kOnes})));
}

}  // namespace
}  // namespace shoal
