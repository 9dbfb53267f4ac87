// Ranks as threads: the conformance suite, and how a run ends when a rank fails.
#include <gmock/gmock.h>

#include <atomic>

#include "comm/conformance.h"
#include "comm/threads/operation.h"
#include "core/clock.h"
#include "core/log.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kChunk = 64 << 10;
class Threads : public testing::TestWithParam<std::tuple<int, Check>> {};

TEST_P(Threads, Conform) {
  const auto& [ranks, check] = GetParam();
  run_threads({.ranks = ranks, .deadline_seconds = 60}, [&](World& world) {
    EXPECT_EQ(world.ranks.size(), ranks);
    EXPECT_EQ(world.ranks.name(), ranks == 1 ? "self" : "threads");
    check.run(world, kChunk);
  });
}

INSTANTIATE_TEST_SUITE_P(, Threads,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::ValuesIn(kChecks)),
                         [](const auto& test) {
                           return fmt::format("{}On{}", std::get<1>(test.param).name,
                                              std::get<0>(test.param));
                         });

// The error that a run of `body` throws; checks that it ends soon.
template <typename Failure = Error>
std::string failure_of(const WorldOptions& options, const RankBody& body) {
  const Stopwatch watch;
  std::string text = "nothing was thrown";
  try {
    run_threads(options, body);
  } catch (const Error& error) {
    text = error.what();
    EXPECT_EQ(typeid(error), typeid(Failure)) << text;
  }
  EXPECT_LT(watch.seconds(), kSoon);
  return text;
}

TEST(FailingThreads, ARankThatThrowsStopsAll) {
  for (const int ranks : {2, 4}) {
    std::atomic<int> stopped = 0;
    const auto text = failure_of<UserError>({.ranks = ranks}, [&](World& world) {
      try {
        fail_while_others_wait(world);
      } catch (const StoppedByPeer&) {
        ++stopped;
        throw;
      }
    });
    EXPECT_EQ(text, fmt::format("rank {}: the disk is full", ranks - 1));
    EXPECT_EQ(stopped, ranks - 1);
  }
}

TEST(FailingThreads, OthersHearBeforeARankHasUnwound) {
  std::atomic<bool> heard = false, in_time = false;
  EXPECT_EQ(
      failure_of<UserError>({.ranks = 2}, [&](World& world) { fail_before_the_end(world, heard, in_time); }),
      "rank 1: the disk is full");
  EXPECT_TRUE(in_time);
}

TEST(FailingThreads, OneTextFromAllIsSaidOnce) {
  EXPECT_EQ(failure_of<UserError>({.ranks = 3}, [](World&) { fail_user("no such file"); }), "no such file");
  EXPECT_EQ(failure_of<UserError>({.ranks = 1}, [](World&) { fail_user("no such file"); }), "no such file");
}

TEST(FailingThreads, OtherTypesAreKept) {
  const auto body = [](World& world) {
    if (world.ranks.rank() == 1) throw std::bad_alloc();
    world.ranks.barrier();
  };
  EXPECT_THROW(run_threads({.ranks = 2}, body), std::bad_alloc);
}

TEST(FailingThreads, OneGroupStopsTheOthers) {
  const auto text = failure_of({.ranks = 4}, [](World& world) {
    const auto pair = world.ranks.split([](int r) { return Communicator::SplitKey{r / 2, r}; });
    if (world.ranks.rank() == 3) fail("lost");
    for (;;) pair->barrier();
  });
  EXPECT_EQ(text, "rank 3: lost");
}

TEST(FailingThreads, ADeadlineNamesWhatAndWho) {
  const auto text =
      failure_of({.ranks = 3, .deadline_seconds = 0.2}, [](World& world) { miss_deadline(world, 0.2); });
  EXPECT_THAT(text, HasSubstr("all_reduce (sum) of 100000 float32 [step 12, gradients of block.3] waited "
                              "0.2 seconds for rank 2"));
}

TEST(FailingThreads, ADeadlineNamesRanksOfTheRun) {
  const auto text = failure_of({.ranks = 4, .deadline_seconds = 0.1}, [](World& world) {
    const auto odd = world.ranks.split([](int r) { return Communicator::SplitKey{r % 2, -r}; });
    if (world.ranks.rank() != 1) odd->barrier();
    world.ranks.barrier();
  });
  EXPECT_THAT(text, HasSubstr("barrier waited 0.1 seconds for rank"));
}

TEST(FailingThreads, ARankThatEndedIsNotWaitedFor) {
  const auto text = failure_of({.ranks = 2}, [](World& world) {
    if (world.ranks.rank() == 0) world.ranks.barrier();
  });
  EXPECT_EQ(text, "rank 0: barrier: rank 1 ended without it");
}

// Two ranks call different collectives.
std::string mismatch(const std::function<void(Communicator&)>& on_0,
                     const std::function<void(Communicator&)>& on_1) {
  return failure_of({.ranks = 2},
                    [&](World& world) { (world.ranks.rank() == 0 ? on_0 : on_1)(world.ranks); });
}

TEST(FailingThreads, CallsThatDoNotMatchAreNamed) {
  static float memory[2][16] = {};
  const auto tensor = [](Communicator& group, std::int64_t count, DType dtype = DType::f32) {
    return Tensor{memory[group.rank()], dtype, {count}};
  };
  const auto sum = [&](std::int64_t count, DType dtype = DType::f32, ReduceOp op = ReduceOp::sum) {
    return [=](Communicator& group) { group.all_reduce(tensor(group, count, dtype), op).wait(); };
  };
  const auto broadcast = [&](int root) {
    return [=](Communicator& group) { group.broadcast(tensor(group, 8), root).wait(); };
  };
  EXPECT_THAT(mismatch(sum(8), [](Communicator& group) { group.barrier(); }),
              AllOf(HasSubstr("all_reduce (sum) of 8 float32"), HasSubstr("barrier")));
  EXPECT_THAT(mismatch(sum(8), sum(7)), AllOf(HasSubstr("8 float32"), HasSubstr("7 float32")));
  EXPECT_THAT(mismatch(sum(8), sum(8, DType::i32)), AllOf(HasSubstr("8 float32"), HasSubstr("8 int32")));
  EXPECT_THAT(mismatch(sum(8), sum(8, DType::f32, ReduceOp::max)), AllOf(HasSubstr("sum"), HasSubstr("max")));
  EXPECT_THAT(mismatch(broadcast(0), broadcast(1)), AllOf(HasSubstr("member 0"), HasSubstr("member 1")));
  EXPECT_THAT(mismatch([&](Communicator& group) { group.send(tensor(group, 8), 1).wait(); },
                       [&](Communicator& group) { group.receive(tensor(group, 9), 0).wait(); }),
              AllOf(HasSubstr("8 float32"), HasSubstr("9 float32")));
}

// Memory freed by an exception must not be in use by another rank, which sanitizers check.
TEST(FailingThreads, LeavingRanksTakeTheirMemoryAlong) {
  for (int round = 0; round < 30; ++round) {
    const auto text = failure_of({.ranks = 3}, [&](World& world) {
      auto& group = world.ranks;
      const std::int64_t count = 200000;
      GuardedValues x(DType::f32, count), all(DType::f32, 3 * count);
      const auto sum = group.all_reduce(x.tensor());
      const auto gather = group.all_gather(all.tensor(), x.tensor());
      if (group.rank() == round % 3) {
        std::this_thread::sleep_for(std::chrono::microseconds(10 * round));
        fail("gone");
      }
      group.barrier();
    });
    EXPECT_EQ(text, fmt::format("rank {}: gone", round % 3));
  }
}

// An exception destroys the request of a collective that the other rank never joins.
TEST(FailingThreads, AnExceptionDoesNotWaitForOthers) {
  const auto text = failure_of({.ranks = 2}, [](World& world) {
    GuardedValues x(DType::f32, 100);
    if (world.ranks.rank() == 1) {
      const auto lonely = world.ranks.all_reduce(x.tensor());
      fail("gone");
    }
    world.ranks.split([](int) { return Communicator::SplitKey{}; })->barrier();
  });
  EXPECT_EQ(text, "rank 1: gone");
}

// A member that has passed the run's check may still come, but must not touch memory that is no longer there.
TEST(FailingThreads, WhatARankGaveUpIsNotDone) {
  ThreadsRun run(2, 1.0);
  const std::vector<int> members = {0, 1};
  for (const bool given_up : {false, true}) {
    Operation operation(run, members, {.kind = Collective::all_reduce, .count = 100}, "");
    GuardedValues mine(DType::f32, 100), other(DType::f32, 100);
    for (auto* x : {&mine, &other}) x->fill([](std::int64_t) { return 1; });
    const auto buffers = [](GuardedValues& x) {
      auto* data = static_cast<std::byte*>(x.tensor().data);
      return Buffers{data, data};
    };
    EXPECT_FALSE(operation.publish(0, buffers(mine)));
    if (given_up) operation.abandon();
    EXPECT_TRUE(operation.publish(1, buffers(other)));
    operation.start(1);
    if (given_up) {
      EXPECT_THROW(operation.wait(1), StoppedByPeer);
    } else {
      operation.wait(1);
    }
    mine.expect("all_reduce", [&](std::int64_t) { return given_up ? 1 : 2; });
  }
}

TEST(FailingThreads, ASwallowedFailureIsStillOne) {
  const auto text = failure_of({.ranks = 2, .deadline_seconds = 0.1}, [](World& world) {
    if (world.ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    try {
      world.ranks.barrier();
    } catch (const Error&) {
    }
  });
  EXPECT_EQ(text, "barrier waited 0.1 seconds for rank 1");
}

// Rank 0 publishes its buffers and then does nothing until rank 1 has the result.
TEST(ThreadsProgress, NeedsNobodyWhoHasPublished) {
  std::atomic<bool> got = false;
  run_threads({.ranks = 2, .deadline_seconds = 5}, [&](World& world) {
    GuardedValues x(DType::f32, 1000000);
    x.fill([](std::int64_t) { return 1; });
    auto request = world.ranks.all_reduce(x.tensor());
    if (world.ranks.rank() == 1) {
      request.wait();
      got = true;
    } else {
      const Stopwatch watch;
      while (!got && watch.seconds() < kSoon) std::this_thread::yield();
      EXPECT_TRUE(got);
      request.wait();
    }
    x.expect("all_reduce", [](std::int64_t) { return 2; });
  });
}

TEST(ThreadsProgress, ABarrierHoldsEverybody) {
  std::atomic<int> came = 0;
  run_threads({.ranks = 4}, [&](World& world) {
    for (int round = 1; round <= 200; ++round) {
      ++came;
      world.ranks.barrier();
      EXPECT_GE(came, 4 * round);
      world.ranks.barrier();
      EXPECT_LE(came, 4 * round + 4);
    }
  });
}

TEST(ThreadsLog, OnlyRankZeroIsHeard) {
  testing::internal::CaptureStderr();
  run_threads({.ranks = 3}, [](World& world) {
    log::info("information from {}", world.ranks.rank());
    log::warn("warning from {}", world.ranks.rank());
    EXPECT_EQ(log::thread_muted(), world.ranks.rank() != 0);
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("information from 0"), HasSubstr("warning from 0"), Not(HasSubstr("from 1")),
                    Not(HasSubstr("from 2"))));
}

}  // namespace
}  // namespace shoal::test
