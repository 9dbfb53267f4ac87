#include "train/spike.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shoal::test {
namespace {

// Mean 2, population standard deviation 1.
SpikeDetector filled(double zscore) {
  SpikeDetector detector(zscore, 4);
  for (const double loss : {1.0, 3.0, 1.0, 3.0}) detector.add(loss);
  return detector;
}

TEST(Spike, IsMeasuredInStandardDeviationsAboveTheWindow) {
  const auto detector = filled(2.5);
  EXPECT_DOUBLE_EQ(detector.zscore(4.0), 2.0);
  EXPECT_DOUBLE_EQ(detector.zscore(0.0), -2.0);
  EXPECT_FALSE(detector.is_spike(4.5));  // at the limit, not past it
  EXPECT_TRUE(detector.is_spike(4.6));
  EXPECT_FALSE(detector.is_spike(-100.0));  // a fall is not a spike
}

TEST(Spike, NothingIsJudgedBeforeTheWindowIsFull) {
  SpikeDetector detector(1, 4);
  for (const double loss : {1.0, 3.0, 1.0}) {
    detector.add(loss);
    EXPECT_FALSE(detector.is_spike(1e9));
  }
  detector.add(3.0);
  EXPECT_TRUE(detector.is_spike(1e9));
}

TEST(Spike, AWindowThatWasLongerBeforeIsCut) {
  SpikeDetector detector(1, 2, {1.0, 2.0, 3.0, 4.0});
  EXPECT_EQ(detector.losses(), (std::vector{3.0, 4.0}));
  detector.add(5.0);
  EXPECT_EQ(detector.losses(), (std::vector{4.0, 5.0}));
}

TEST(Spike, TheWindowKeepsTheNewest) {
  auto detector = filled(1);
  detector.add(7.0);
  EXPECT_EQ(detector.losses(), (std::vector{3.0, 1.0, 3.0, 7.0}));
}

TEST(Spike, AConstantLossHasNoSpikes) {
  SpikeDetector detector(1, 2);
  detector.add(2.0);
  detector.add(2.0);
  EXPECT_FALSE(detector.is_spike(3.0));
}

TEST(Spike, ZeroIsOff) {
  const auto detector = filled(0);
  EXPECT_TRUE(detector.losses().empty());
  EXPECT_FALSE(detector.is_spike(1e9));
}

TEST(Spike, GoesOnFromASavedWindow) {
  const auto whole = filled(2.5);
  const SpikeDetector resumed(2.5, 4, whole.losses());
  EXPECT_EQ(resumed.zscore(4.7), whole.zscore(4.7));
}

}  // namespace
}  // namespace shoal::test
