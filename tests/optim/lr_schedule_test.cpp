#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shoal::test {
namespace {

LrSchedule schedule(LrShape shape) {
  return {.shape = shape,
          .peak = 1e-3,
          .minimum = 1e-4,
          .warmup_steps = 10,
          .decay_steps = shape == LrShape::wsd ? 20 : 110,
          .total_steps = 200};
}

class EveryShape : public testing::TestWithParam<LrShape> {};
INSTANTIATE_TEST_SUITE_P(, EveryShape,
                         testing::Values(LrShape::cosine, LrShape::linear, LrShape::constant, LrShape::wsd));

TEST_P(EveryShape, WarmsUpLinearlyFromAboveZero) {
  const auto lr = schedule(GetParam());
  EXPECT_DOUBLE_EQ(lr.at(0), 1e-3 / 11);
  EXPECT_DOUBLE_EQ(lr.at(4), 1e-3 * 5 / 11);
  EXPECT_DOUBLE_EQ(lr.at(9), 1e-3 * 10 / 11);
  EXPECT_DOUBLE_EQ(lr.at(10), 1e-3);
}

TEST_P(EveryShape, WarmsUpFromAShareThatIsGiven) {
  auto lr = schedule(GetParam());
  for (const double start : {1.0 / 10, 1.0 / 11, 0.5, 1e-9}) {
    lr.warmup_start = start;
    for (int done = 0; done <= 10; ++done) {
      EXPECT_DOUBLE_EQ(lr.at(done), 1e-3 * (start + (1 - start) * done / 10)) << start << " " << done;
    }
  }
}

// Runs that do not know of the share must go on with the same bits.
TEST_P(EveryShape, WithoutAShareHasNanoGptsBits) {
  auto lr = schedule(GetParam());
  for (const std::int64_t warmup : {1, 2, 7, 100, 2000}) {
    lr.warmup_steps = warmup;
    for (std::int64_t done = 0; done < warmup; ++done) {
      EXPECT_EQ(lr.at(done), lr.peak * static_cast<double>(done + 1) / static_cast<double>(warmup + 1));
    }
  }
}

TEST_P(EveryShape, WithoutWarmupStartsAtThePeak) {
  auto lr = schedule(GetParam());
  lr.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(lr.at(0), 1e-3);
  lr.warmup_start = 0.25;
  EXPECT_DOUBLE_EQ(lr.at(0), 1e-3);
}

TEST_P(EveryShape, NeverRisesAfterWarmupNorLeavesItsRange) {
  const auto lr = schedule(GetParam());
  for (int done = 10; done < 300; ++done) {
    EXPECT_LE(lr.at(done + 1), lr.at(done)) << done;
    EXPECT_GE(lr.at(done), 1e-4) << done;
    EXPECT_LE(lr.at(done), 1e-3) << done;
  }
}

TEST(LrSchedule, CosineFallsByHalfAPeriod) {
  const auto lr = schedule(LrShape::cosine);
  EXPECT_DOUBLE_EQ(lr.at(60), 5.5e-4);                                    // halfway
  EXPECT_DOUBLE_EQ(lr.at(35), 1e-4 + 0.5 * 9e-4 * (1 + std::sqrt(0.5)));  // a quarter
  EXPECT_DOUBLE_EQ(lr.at(110), 1e-4);
  EXPECT_DOUBLE_EQ(lr.at(1000), 1e-4);
}

TEST(LrSchedule, LinearFallsInAStraightLine) {
  const auto lr = schedule(LrShape::linear);
  EXPECT_DOUBLE_EQ(lr.at(35), 1e-3 - 0.25 * 9e-4);
  EXPECT_DOUBLE_EQ(lr.at(60), 5.5e-4);
  EXPECT_DOUBLE_EQ(lr.at(110), 1e-4);
  EXPECT_DOUBLE_EQ(lr.at(1000), 1e-4);
}

TEST(LrSchedule, ConstantStays) { EXPECT_DOUBLE_EQ(schedule(LrShape::constant).at(1000), 1e-3); }

TEST(LrSchedule, WsdIsStableUntilItsLastSteps) {
  const auto lr = schedule(LrShape::wsd);
  EXPECT_DOUBLE_EQ(lr.at(100), 1e-3);
  EXPECT_DOUBLE_EQ(lr.at(180), 1e-3);
  EXPECT_DOUBLE_EQ(lr.at(190), 5.5e-4);
  EXPECT_DOUBLE_EQ(lr.at(200), 1e-4);
}

}  // namespace
}  // namespace shoal::test
