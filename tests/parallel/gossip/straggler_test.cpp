// A late worker delays only the workers that need its model. The test does not depend on time: the worker
// continues when all others have come as far as they can.
#include <gmock/gmock.h>

#include <condition_variable>

#include "core/clock.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/gossip_run.h"
#include "parallel/transports.h"

namespace shoal::test {
namespace {

// The number of steps that each worker can complete while worker 0 completes only `late`. A step needs the
// models of the worker's group before that step; the first step needs only its own.
std::vector<int> reach(const Topology& topology, int steps, int late) {
  std::vector<int> done(static_cast<std::size_t>(topology.workers));
  for (int step = 0; step < steps; ++step) {
    const auto before = done;
    for (int worker = 0; worker < topology.workers; ++worker) {
      if (worker == 0 && step >= late) continue;
      const auto group = step == 0 ? Topology::Group{worker} : topology.group_of(worker, step);
      const auto has_come = [&](int member) { return before[static_cast<std::size_t>(member)] >= step; };
      if (std::all_of(group.begin(), group.end(), has_come)) ++done[static_cast<std::size_t>(worker)];
    }
  }
  return done;
}

TEST(Reach, OfARing) {
  const auto ring = make_topology("ring", 6, 1);
  // Its first model is there for 5 in step 1; what 1 needs in step 2, and 5 in step 3, is not, and 2 needs 1.
  EXPECT_THAT(reach(ring, 4, 1), testing::ElementsAre(1, 2, 3, 4, 4, 3));
  EXPECT_THAT(reach(make_topology("complete", 3, 1), 4, 1), testing::ElementsAre(1, 2, 2));
}

// Counts completed steps, and blocks worker 0.
class Gate {
 public:
  explicit Gate(int workers) : done_(static_cast<std::size_t>(workers)) {}

  void done(int worker) {
    const std::lock_guard lock(mutex_);
    ++done_[static_cast<std::size_t>(worker)];
    changed_.notify_all();
  }
  void await(const std::vector<int>& expected) {
    std::unique_lock lock(mutex_);
    const auto all_there = [&] {
      for (std::size_t w = 1; w < done_.size(); ++w) {
        if (done_[w] < expected[w]) return false;
      }
      return true;
    };
    if (!changed_.wait_for(lock, std::chrono::seconds(20), all_there)) {
      fail("somebody waits for worker 0: workers did {} steps, not {}", fmt::join(done_, ", "),
           fmt::join(expected, ", "));
    }
    EXPECT_EQ(done_, expected) << "somebody did not wait for a model that it needs";
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> done_;
};

// Worker 0 is the last in every step.
std::vector<RunOutcome> be_late(Transport transport, const RanksRun& run) {
  const auto& topology = run.engine.gossip->topology;
  Gate gate(topology.workers);
  std::vector<RunOutcome> outcomes(static_cast<std::size_t>(topology.workers));
  run_over(transport, {.ranks = topology.workers, .deadline_seconds = 30}, [&](World& world) {
    RankOfRun rank(run, world.ranks);
    auto& outcome = outcomes[static_cast<std::size_t>(world.ranks.rank())];
    for (int step = 0; step < run.steps; ++step) {
      if (world.ranks.rank() == 0 && step > 0) gate.await(reach(topology, run.steps, step));
      rank.step(step, outcome);
      gate.done(world.ranks.rank());
    }
    collect(outcome, rank.engine(), rank.backend());
  });
  return outcomes;
}

// Some exchanges are so large that the waiting workers complete them piece by piece.
RanksRun larger(const Topology& topology) {
  auto run = gossip_run(topology);
  run.model.n_embd = 32;
  run.engine.micro_batches = 1;
  run.engine.gossip->bucket_bytes = kSomeBuckets;
  return run;
}

class Straggler : public testing::TestWithParam<Topology> {};

TEST_P(Straggler, HoldsUpOnlyItsPartners) {
  for (const bool clip_by_bucket : {false, true}) {
    auto run = larger(GetParam());
    run.engine.gossip->clip_by_bucket = clip_by_bucket;
    EXPECT_TRUE(bytes_of(be_late(Transport::threads, run)) == bytes_of(train_workers(run)));
  }
}

// With groups of two, sums over MPI have the same bits as those of threads.
TEST_P(Straggler, HoldsUpOnlyItsPartnersOverMpi) {
  const auto run = larger(GetParam());
  const auto workers = be_late(Transport::mpi, run);
  std::size_t largest = 0;
  for (const auto& round : GetParam().rounds) {
    for (const auto& group : round) largest = std::max(largest, group.size());
  }
  if (largest == 2) {
    EXPECT_TRUE(bytes_of(workers) == bytes_of(train_workers(run)));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Straggler, testing::ValuesIn(gossip_topologies()),
                         [](const auto& test) { return title_of(test.param); });

// The work of a worker between its gradient and its update.
TEST(FailingWorker, StopsAllWithItsMessage) {
  for (const auto transport : {Transport::threads, Transport::mpi}) {
    for (const bool before_update : {false, true}) {
      const auto run = larger(make_topology("alternating-exp-ring", 4, 2));
      const Stopwatch watch;
      const auto steps = [&] {
        run_over(transport, {.ranks = 4, .deadline_seconds = 60}, [&](World& world) {
          RankOfRun rank(run, world.ranks);
          RunOutcome outcome;
          for (int step = 0; step < run.steps; ++step) {
            const bool fails = world.ranks.rank() == 2 && step == 3;
            if (fails && before_update) {
              rank.gradient(step, outcome);
            } else {
              rank.step(step, outcome);
            }
            if (fails) shoal::fail("the disk is full");
          }
        });
      };
      EXPECT_THAT(steps, testing::ThrowsMessage<Error>("rank 2: the disk is full")) << name_of(transport);
      EXPECT_LT(watch.seconds(), 5);
    }
  }
}

}  // namespace
}  // namespace shoal::test
