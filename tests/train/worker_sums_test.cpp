// Losses, norms and signals of a step, told to all workers and read later.
#include "train/worker_sums.h"

#include <gtest/gtest.h>

#include "comm/world.h"
#include "parallel/gossip/topology_schemes.h"

namespace shoal::test {
namespace {

constexpr int kWorkers = 4;

WorkerSums::Numbers numbers_of(int worker, std::int64_t step) {
  WorkerSums::Numbers numbers{.loss = worker + static_cast<double>(step),
                              .grad_norm = 2.0 * worker,
                              .skipped = worker > 1 ? 1.0 : 0.0,
                              .step = step};
  numbers.signals = {};
  numbers.signals[0] = worker == 3 ? 1 : 0;
  return numbers;
}

TEST(WorkerSums, AreMeansOverTheWorkersAndNumbersOfThem) {
  run_threads({.ranks = kWorkers}, [](World& world) {
    WorkerSums sums(world.ranks, make_topology("complete", kWorkers, 1), 1);
    auto mine = numbers_of(world.ranks.rank(), 5);
    mine.record = {.step = 5, .lr = 0.25};
    sums.post(mine);
    const auto heard = sums.next(true);
    ASSERT_TRUE(heard);
    EXPECT_EQ(heard->step, 5);
    EXPECT_EQ(heard->loss, 6.5);
    EXPECT_EQ(heard->grad_norm, 3);
    EXPECT_EQ(heard->skipped, 2);
    EXPECT_EQ(heard->signals[0], 1);
    ASSERT_TRUE(heard->record);
    EXPECT_EQ(heard->record->loss, 6.5);
    EXPECT_EQ(heard->record->grad_norm, 3);
    EXPECT_EQ(heard->record->lr, 0.25);
    EXPECT_FALSE(sums.next(true));
  });
}

// A round of a ring brings news of one neighbour, so those of all take several steps. They come in their
// order.
TEST(WorkerSums, AreReadWhenAllHaveBeenWaitedFor) {
  run_threads({.ranks = kWorkers}, [](World& world) {
    const auto ring = make_topology("ring", kWorkers, 1);
    constexpr int kInterval = 3;  // steps of a round
    const int lag = kInterval * rounds_to_hear_of_all(ring);
    ASSERT_GT(lag, kInterval);
    WorkerSums sums(world.ranks, ring, kInterval);
    for (std::int64_t step = 1; step <= lag; ++step) {
      sums.post(numbers_of(world.ranks.rank(), step));
      EXPECT_FALSE(sums.next(false)) << step;
    }
    sums.post(numbers_of(world.ranks.rank(), lag + 1));
    EXPECT_EQ(sums.next(false).value().step, 1);
    EXPECT_FALSE(sums.next(false));
    for (std::int64_t step = 2; step <= lag + 1; ++step) EXPECT_EQ(sums.next(true).value().step, step);
  });
}

}  // namespace
}  // namespace shoal::test
