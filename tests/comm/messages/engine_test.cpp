// The engine of MPI ranks over a network in memory: the conformance suite and failures, without mpirun.
#include <gmock/gmock.h>

#include <thread>

#include "comm/conformance.h"
#include "comm/fake_transport.h"
#include "comm/messages/piece_scheduler.h"
#include "comm/messages/plan.h"
#include "comm/messages/run.h"
#include "core/clock.h"

namespace shoal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The error message of every rank: "" for success, "stopped" for StoppedByPeer.
std::vector<std::string> run_ranks(int ranks, double deadline_seconds,
                                   const std::function<void(World&, FakeTransport&)>& body) {
  const Stopwatch watch;
  FakeNetwork network(ranks);
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        FakeTransport transport(network, rank);
        try {
          messages::run_rank(transport, {.deadline_seconds = deadline_seconds},
                             [&](World& world) { body(world, transport); });
        } catch (const StoppedByPeer&) {
          failures[static_cast<std::size_t>(rank)] = "stopped";
        } catch (const std::exception& error) {
          failures[static_cast<std::size_t>(rank)] = error.what();
        }
        EXPECT_FALSE(transport.tested_again);
      });
    }
  }
  const bool failed = !std::all_of(failures.begin(), failures.end(), [](const auto& f) { return f.empty(); });
  if (failed) {
    constexpr double kNoLauncher = 3;  // one would end the ranks once one of them has reported
    EXPECT_LT(watch.seconds(), kSoon + kNoLauncher);
  }
  return failures;
}

class MpiEngine : public testing::TestWithParam<std::tuple<int, Check>> {};

TEST_P(MpiEngine, Conforms) {
  const auto& [ranks, check] = GetParam();
  const auto failures = run_ranks(ranks, 60, [&](World& world, FakeTransport&) {
    EXPECT_EQ(world.ranks.name(), ranks == 1 ? "self" : "mpi");
    check.run(world, (1 << 20) / ranks);
  });
  EXPECT_THAT(failures, testing::Each("")) << check.name;
}

INSTANTIATE_TEST_SUITE_P(, MpiEngine, testing::Combine(testing::Values(1, 2, 5), testing::ValuesIn(kChecks)),
                         [](const auto& test) {
                           return fmt::format("{}On{}", std::get<1>(test.param).name,
                                              std::get<0>(test.param));
                         });

// The last piece of a plan for 12 GB ends at the end of the tensor. The plan reads no memory.
TEST(MpiPlan, CountsGoPastTwoToThe31) {
  auto* const start = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  constexpr std::int64_t kCount = 3'000'000'001;
  const Tensor x{start, DType::f32, {kCount}};
  for (const auto& plan :
       {messages::plan_all_reduce({2, 3}, x, ReduceOp::sum), messages::plan_broadcast({2, 3}, x, 0),
        messages::plan_message(messages::Message::Direction::send, x, 0)}) {
    std::byte* end = nullptr;
    const auto piece = plan.piece(plan.pieces - 1, nullptr);
    for (const auto* messages : {&piece.first, &piece.second}) {
      for (const auto& message : *messages) {
        EXPECT_LE(message.bytes, 1 << 20);
        if (message.direction == messages::Message::Direction::send)
          end = std::max(end, message.data + message.bytes);
      }
    }
    EXPECT_EQ(end - start, 4 * kCount);
  }
}

// Rank 0 starts an all_reduce with rank 1 and then one with rank 2, which have not started. Counts the
// messages that rank 0 sent to each.
TEST(MpiPieceScheduler, WhatBeganFirstHasTheNetwork) {
  const auto sent = [](std::int64_t first, std::int64_t second, bool awaited) {
    FakeNetwork network(3);
    FakeTransport transport(network, 0);
    messages::PieceScheduler scheduler(transport);
    std::vector<std::vector<float>> data;
    for (const auto count : {first, second}) {
      const int peer = static_cast<int>(data.size()) + 1;
      data.emplace_back(static_cast<std::size_t>(count));
      const Tensor x{data.back().data(), DType::f32, {count}};
      auto operation = std::make_shared<messages::PendingOperation>();
      operation->group =
          std::make_shared<messages::Group>(messages::Group{messages::kFirstFreeGroup + peer, {0, peer}, 0});
      operation->plan = messages::plan_all_reduce({0, 2}, x, ReduceOp::sum);
      operation->bytes = static_cast<std::int64_t>(x.bytes());
      operation->awaited = peer == 2 && awaited;
      scheduler.add(operation);
    }
    for (int i = 0; i < 3; ++i) scheduler.advance();
    return std::pair(network.arrived(1).size(), network.arrived(2).size());
  };
  constexpr std::int64_t kLarge = 8 << 20, kSmall = 1 << 10;  // elements: 32 pieces, and one
  EXPECT_EQ(sent(kLarge, kLarge, false), std::pair(4ul, 1ul));
  EXPECT_EQ(sent(kLarge, kLarge, true), std::pair(4ul, 4ul));
  EXPECT_EQ(sent(kSmall, kLarge, false), std::pair(1ul, 4ul));
  EXPECT_EQ(sent(kLarge, kSmall, false), std::pair(4ul, 1ul));
}

// A script must not take a run that a signal stopped before anything was saved for a success.
TEST(MpiThatDoesNotEnd, LeavesTheRunsExitCode) {
  const auto run = [] {
    FakeNetwork network(1);
    FakeTransport transport(network, 0);
    transport.hangs_at_end = true;
    messages::run_rank(transport, {.end_seconds = 0.1}, [](World& world) { world.exit_code = 130; });
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(130), "MPI did not end within 100 ms");
}

TEST(FailingMpi, ARankThatThrowsStopsAll) {
  EXPECT_THAT(run_ranks(3, 60, [](World& world, FakeTransport&) { fail_while_others_wait(world); }),
              ElementsAre("stopped", "stopped", "rank 2: the disk is full"));
}

// The reporting rank depends on timing: it is one that failed before it learned of another failure.
TEST(FailingMpi, OneOfThoseThatFailAtOnceReports) {
  const auto failures = run_ranks(3, 60, [](World& world, FakeTransport&) {
    world.ranks.barrier();
    fail("lost");
  });
  EXPECT_EQ(std::count(failures.begin(), failures.end(), "stopped"), 2);
  const auto others = run_ranks(3, 60, [](World& world, FakeTransport&) {
    world.ranks.barrier();
    fail("lost {}", world.ranks.rank());
  });
  EXPECT_EQ(std::count(others.begin(), others.end(), "stopped"), 2);
  for (const int rank : {0, 1, 2}) {
    const auto& text = others[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(text == "stopped" || text == fmt::format("rank {}: lost {}", rank, rank)) << text;
  }
}

// Rank 2 fails a little later, after it has been informed of the others' failures.
TEST(FailingMpi, OneTextFromAllIsSaidOnce) {
  const auto failures = run_ranks(3, 60, [](World& world, FakeTransport&) {
    world.ranks.barrier();
    if (world.ranks.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    fail_user("no such file");
  });
  EXPECT_EQ(std::count(failures.begin(), failures.end(), "no such file"), 1);
  EXPECT_EQ(std::count(failures.begin(), failures.end(), "stopped"), 2);
}

TEST(FailingMpi, ABodyThatGivesUpBecauseOfAPeerLetsThatOneReport) {
  EXPECT_THAT(run_ranks(2, 60,
                        [](World& world, FakeTransport&) {
                          if (world.ranks.rank() == 0) throw StoppedByPeer();
                          std::this_thread::sleep_for(std::chrono::milliseconds(100));
                          fail("the files differ");
                        }),
              ElementsAre("stopped", "rank 1: the files differ"));
}

TEST(FailingMpi, OthersHearBeforeARankHasUnwound) {
  std::atomic<bool> heard = false, in_time = false;
  EXPECT_THAT(
      run_ranks(2, 60, [&](World& world, FakeTransport&) { fail_before_the_end(world, heard, in_time); }),
      ElementsAre("stopped", "rank 1: the disk is full"));
  EXPECT_TRUE(in_time);
}

// A launcher ends all ranks once one has ended, so the others wait for the message.
TEST(FailingMpi, ARankThatUnwindsSlowlyEndsFirst) {
  std::mutex mutex;
  std::vector<int> ended;
  {
    FakeNetwork network(3);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        FakeTransport transport(network, rank);
        try {
          messages::run_rank(transport, {}, [](World& world) {
            GuardedValues x(DType::f32, 100000);
            const int me = world.ranks.rank();
            if (me > 0) world.ranks.receive(x.tensor(), 3 - me).wait();
            const SlowEnd slow{1.5};
            const auto lonely = world.ranks.all_reduce(x.tensor());
            fail("gone");
          });
        } catch (const Error&) {
        }
        const std::scoped_lock lock(mutex);
        ended.push_back(rank);
      });
    }
  }
  EXPECT_EQ(ended.at(0), 0);
}

TEST(FailingMpi, ADeadlineNamesWhatAndWho) {
  const auto failures = run_ranks(3, 0.3, [](World& world, FakeTransport&) { miss_deadline(world, 0.3); });
  EXPECT_THAT(
      failures[0] + failures[1],
      HasSubstr("all_reduce (sum) of 100000 float32 [step 12, gradients of block.3] waited 0.3 seconds "
                "for rank 2"));
  EXPECT_EQ(failures[2], "stopped");
}

TEST(FailingMpi, ADeadlineOfAMessageNamesThePeer) {
  const auto failures = run_ranks(3, 0.3, [](World& world, FakeTransport&) {
    GuardedValues x(DType::f32, 10);
    if (world.ranks.rank() == 1) world.ranks.receive(x.tensor(), 2).wait();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    world.ranks.barrier();
  });
  EXPECT_EQ(failures[1], "rank 1: receive of 10 float32 waited 0.3 seconds for rank 2");
}

TEST(FailingMpi, ARankThatHasEndedDidNotCome) {
  const auto failures = run_ranks(2, 0.3, [](World& world, FakeTransport&) {
    if (world.ranks.rank() == 0) world.ranks.barrier();
  });
  EXPECT_EQ(failures[0], "rank 0: barrier waited 0.3 seconds for rank 1; rank 1 ended without it");
}

TEST(FailingMpi, WhatMpiSaysIsReported) {
  const auto failures = run_ranks(2, 0.5, [](World& world, FakeTransport& transport) {
    world.ranks.barrier();
    if (world.ranks.rank() == 1) {
      transport.broken = true;
      world.ranks.barrier();
    }
  });
  EXPECT_EQ(failures[1], "rank 1: MPI: the cable is broken");
}

// Rank 0 cannot start a message, and rank 1 has started to receive into scratch memory. Both hear of each
// other.
TEST(FailingMpi, OneOfThoseWhoseDataFailReports) {
  const auto failures = run_ranks(3, 60, [](World& world, FakeTransport& transport) {
    const int rank = world.ranks.rank();
    world.ranks.barrier();
    if (rank < 2) transport.data_left = rank;
    GuardedValues x(DType::f32, 500000);
    world.ranks.all_reduce(x.tensor()).wait();
  });
  EXPECT_EQ(std::count(failures.begin(), failures.end(), "stopped"), 2);
  EXPECT_THAT(failures, testing::Contains(HasSubstr("MPI: the cable is broken")));
}

// A dead rank takes no message, and MPI may let a sender wait for that.
TEST(FailingMpi, ARankThatIsGoneDoesNotHoldUpTheReport) {
  const Stopwatch watch;
  FakeNetwork network(2);
  FakeTransport transport(network, 0);
  transport.eager = 0;
  try {
    messages::run_rank(transport, {.deadline_seconds = 0.3}, [](World&) {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("for rank 1; rank 1 did not answer"));
  }
  EXPECT_LT(watch.seconds(), kSoon);
}

// Memory freed by an exception must not be in use any more, which sanitizers check.
TEST(FailingMpi, LeavingRanksTakeTheirMemoryAlong) {
  for (int round = 0; round < 2; ++round) {
    const auto failures = run_ranks(3, 60, [&](World& world, FakeTransport&) {
      auto& group = world.ranks;
      const std::int64_t count = 500000;
      GuardedValues x(DType::f32, count), all(DType::f32, 3 * count);
      const auto sum = group.all_reduce(x.tensor());
      const auto gather = group.all_gather(all.tensor(), x.tensor());
      if (group.rank() == round) {
        GuardedValues y(DType::f32, count);
        const auto lonely = group.all_reduce(y.tensor());
        fail("gone");
      }
      group.send(x.tensor(), (group.rank() + 1) % 3).wait();
      group.barrier();
    });
    EXPECT_EQ(failures[static_cast<std::size_t>(round)], fmt::format("rank {}: gone", round));
  }
}

}  // namespace
}  // namespace shoal::test
