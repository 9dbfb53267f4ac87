#include "comm/clocks.h"

#include <gmock/gmock.h>

#include <cmath>

#include "comm/world.h"
#include "core/trace.h"

namespace shoal {
namespace {

TEST(Clocks, OneClockNeedsNoCorrection) {
  run_threads({.ranks = 4, .deadline_seconds = 60}, [](World& world) {
    const auto found = compare_clocks(world.ranks, host_clock());
    EXPECT_EQ(found.offset, 0);
    EXPECT_EQ(found.uncertainty, 0);
    EXPECT_EQ(time_of_first(12.5, found, compare_clocks(world.ranks, host_clock())), 12.5);
  });
}

// Ranks 1 and 3 are on another host, whose clock is ahead by 1000 s and runs 1 % fast.
TEST(Clocks, OffsetsAreFoundWithinTheirUncertainty) {
  constexpr double kAhead = 1000, kRate = 1.01;
  const double start = trace::now();
  run_threads({.ranks = 4, .deadline_seconds = 60}, [&](World& world) {
    const bool far = world.ranks.rank() % 2 == 1;
    const auto far_time = [&](double time) { return start + kAhead + (time - start) * kRate; };
    const HostClock clock{far ? 7u : 5u, [&] { return far ? far_time(trace::now()) : trace::now(); }};
    const auto begin = compare_clocks(world.ranks, clock);
    const double between = trace::now();
    const double seen = far ? far_time(between) : between;
    const auto end = compare_clocks(world.ranks, clock);
    if (!far) {
      EXPECT_EQ(begin.offset, 0);
      return;
    }
    // The offset is exact at the moment when rank 0 answered. The middle of the exchange is at most
    // `uncertainty` away from it, and meanwhile the clocks drift by 1 % of that. Doubles around 1e6 s resolve
    // 1e-10 s.
    for (const auto& found : {begin, end}) {
      const double real = start + (found.at - start - kAhead) / kRate;
      EXPECT_GT(found.uncertainty, 0);
      EXPECT_LE(std::abs(found.offset - (real - found.at)), 1.01 * found.uncertainty + 1e-8);
    }
    // Between the comparisons the error is at most the larger of both.
    EXPECT_LE(std::abs(time_of_first(seen, begin, end) - between),
              1.01 * std::max(begin.uncertainty, end.uncertainty) + 1e-8);
  });
}

TEST(Clocks, DriftIsSpreadEvenly) {
  const ClockOffset begin{.at = 10, .offset = 5}, end{.at = 20, .offset = 6};
  EXPECT_DOUBLE_EQ(time_of_first(10, begin, end), 15);
  EXPECT_DOUBLE_EQ(time_of_first(15, begin, end), 20.5);
  EXPECT_DOUBLE_EQ(time_of_first(20, begin, end), 26);
  EXPECT_DOUBLE_EQ(time_of_first(15, begin, begin), 20);
}

}  // namespace
}  // namespace shoal
