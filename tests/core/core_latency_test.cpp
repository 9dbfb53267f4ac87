#include "core/core_latency.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/cores.h"

namespace shoal::test {
namespace {

TEST(CoreLatency, IsMoreThanNothingBetweenCoresAndZeroWhereThereIsNone) {
  const auto cores = allowed_core_numbers();
  ASSERT_FALSE(cores.empty());
  EXPECT_TRUE(std::ranges::is_sorted(cores));
  EXPECT_EQ(std::ssize(cores), allowed_cores());
  EXPECT_EQ(core_latency(cores[0], 1 << 20), 0);
  EXPECT_EQ(allowed_core_numbers(), cores);  // the caller stays where it was
  if (cores.size() < 2) GTEST_SKIP() << "there is one core";
  const double seconds = core_latency(cores[0], cores[1]);
  EXPECT_GT(seconds, 1e-9);  // light goes 30 cm
  EXPECT_LT(seconds, 1);     // what a time slice of another program may add
}

}  // namespace
}  // namespace shoal::test
