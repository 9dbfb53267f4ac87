#include "train/time_estimate.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(TimeEstimate, IsKnownOnceAndWithoutTheFirstStep) {
  TimeEstimate estimate;
  EXPECT_FALSE(estimate.count_step(100));
  EXPECT_FALSE(estimate.count_step(0.5));
  EXPECT_FALSE(estimate.count_step(0.5));
  EXPECT_TRUE(estimate.count_step(2)) << "three steps of more than a second together";
  EXPECT_DOUBLE_EQ(estimate.seconds_per_step(), 1);
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(estimate.count_step(5));
  EXPECT_DOUBLE_EQ(estimate.seconds_per_step(), 1);
}

TEST(TimeEstimate, TakesTwentyShortSteps) {
  TimeEstimate estimate;
  EXPECT_FALSE(estimate.count_step(1));
  for (int i = 0; i < 19; ++i) EXPECT_FALSE(estimate.count_step(0.001));
  EXPECT_TRUE(estimate.count_step(0.001));
  EXPECT_DOUBLE_EQ(estimate.seconds_per_step(), 0.001);
}

}  // namespace
}  // namespace shoal
