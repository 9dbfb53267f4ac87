// Tracing communicators conform like the ones that they wrap, and every member of a group records every call.
#include "comm/tracing.h"

#include <gmock/gmock.h>

#include <map>
#include <mutex>
#include <set>

#include "comm/conformance.h"
#include "core/trace.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using trace::Event;
using trace::Lane;

World traced_world(Communicator& ranks, const World& world) {
  return {ranks, world.local_rank, world.local_size, world.cores, world.where};
}

class TracedThreads : public testing::TestWithParam<std::tuple<int, Check>> {};

TEST_P(TracedThreads, Conform) {
  const auto& [ranks, check] = GetParam();
  run_threads({.ranks = ranks, .deadline_seconds = 60}, [&](World& world) {
    const auto tracing = make_tracing_communicator(world.ranks);
    EXPECT_EQ(tracing->name(), world.ranks.name());
    auto traced = traced_world(*tracing, world);
    const trace::Recorder recorder;
    check.run(traced, 64 << 10);
  });
}

INSTANTIATE_TEST_SUITE_P(, TracedThreads, testing::Combine(testing::Values(1, 4), testing::ValuesIn(kChecks)),
                         [](const auto& test) {
                           return fmt::format("{}On{}", std::get<1>(test.param).name,
                                              std::get<0>(test.param));
                         });

std::string argument(const Event& event, std::string_view name) {
  for (const auto& [key, value] : event.arguments) {
    if (key == name) return value;
  }
  return "";
}

using Events = std::vector<Event>;

// The events of every rank of a run of `body` over tracing communicators.
std::vector<Events> trace_of(int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<Events> all(static_cast<std::size_t>(ranks));
  run_threads({.ranks = ranks, .deadline_seconds = 60}, [&](World& world) {
    const auto tracing = make_tracing_communicator(world.ranks);
    const trace::Recorder recorder;
    body(*tracing);
    all[static_cast<std::size_t>(world.ranks.rank())] = recorder.events();
  });
  return all;
}

std::vector<Event> of_lane(const Events& events, Lane lane) {
  Events found;
  for (const auto& event : events) {
    if (event.lane == lane) found.push_back(event);
  }
  return found;
}

// The ranks that recorded each call, by call and ranks.
std::map<std::string, std::multiset<int>> callers(const std::vector<Events>& all) {
  std::map<std::string, std::multiset<int>> found;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    for (const auto& event : of_lane(all[static_cast<std::size_t>(rank)], Lane::transfers)) {
      found[argument(event, "call") + " " + argument(event, "ranks")].insert(rank);
    }
  }
  return found;
}

TEST(TracingCommunicator, EveryCallHasAllItsRanks) {
  const auto all = trace_of(4, [](Communicator& ranks) {
    const auto row = ranks.split([](int r) { return Communicator::SplitKey{r / 2, r}; });
    const auto column = ranks.split([](int r) { return Communicator::SplitKey{r % 2, -r}; });
    const auto alone = row->split([](int r) { return Communicator::SplitKey{r, 0}; });
    const auto again = row->split([](int) { return Communicator::SplitKey{}; });
    float x[4] = {};
    const Tensor whole{x, DType::f32, {4}}, part{x, DType::f32, {2}};
    ranks.barrier();
    for (Communicator* group : {row.get(), column.get(), alone.get(), again.get()}) {
      group->all_reduce(whole).wait();
      group->broadcast(whole, 0).wait();
    }
    auto request = ranks.rank() == 2 ? ranks.send(part, 3) : Request();
    if (ranks.rank() == 3) ranks.receive(part, 2).wait();
    request.wait();
  });
  std::map<std::string, std::multiset<int>> wanted;
  wanted["all#0 0,1,2,3"] = {0, 1, 2, 3};
  for (const char* number : {"0", "1"}) {
    for (const auto* row : {"all.0#", "all.0.1#"}) {
      wanted[fmt::format("{}{} 0,1", row, number)] = {0, 1};
      wanted[fmt::format("{}{} 2,3", row, number)] = {2, 3};
    }
    wanted[fmt::format("all.1#{} 2,0", number)] = {0, 2};
    wanted[fmt::format("all.1#{} 3,1", number)] = {1, 3};
  }
  wanted["all#m0 2,3"] = {2, 3};
  EXPECT_EQ(callers(all), wanted);
}

TEST(TracingCommunicator, EventsSayWhatAndWhen) {
  const auto all = trace_of(2, [](Communicator& ranks) {
    std::vector<float> x(100), out(200);
    const Tensor part{x.data(), DType::f32, {100}}, whole{out.data(), DType::f32, {200}};
    ranks.set_purpose("step 12, weights of block.3");
    if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    auto gather = ranks.all_gather(whole, part);
    ranks.set_purpose("");
    gather.wait();
    { const auto dropped = ranks.all_reduce(part); }
  });
  for (const auto& events : all) {
    const auto transfers = of_lane(events, Lane::transfers);
    ASSERT_EQ(transfers.size(), 2u);
    EXPECT_EQ(transfers[0].category, "collective");
    EXPECT_EQ(transfers[0].name, "all_gather");
    EXPECT_EQ(argument(transfers[0], "bytes"), "800");
    EXPECT_EQ(argument(transfers[0], "purpose"), "step 12, weights of block.3");
    EXPECT_EQ(transfers[1].name, "all_reduce");
    EXPECT_EQ(argument(transfers[1], "purpose"), "");
    double last = 0;
    for (const auto& wait : of_lane(events, Lane::waits)) {
      EXPECT_EQ(wait.category, "wait");
      EXPECT_LE(last, wait.begin);
      EXPECT_LE(wait.begin, wait.end);
      last = wait.end;
      // A wait lies within the collective that it waits for.
      const auto& transfer = transfers[wait.name == "all_gather" ? 0 : 1];
      EXPECT_LE(transfer.begin, wait.begin);
      EXPECT_GE(transfer.end, wait.end);
    }
  }
  // Rank 0 called first, so it had to wait for the other.
  const auto waits = of_lane(all[0], Lane::waits);
  ASSERT_FALSE(waits.empty());
  EXPECT_EQ(waits[0].name, "all_gather");
  EXPECT_GT(waits[0].end - waits[0].begin, 0.01);
}

TEST(TracingCommunicator, CallsAreCountedWhileNothingIsTraced) {
  std::vector<Events> all(2);
  run_threads({.ranks = 2, .deadline_seconds = 60}, [&](World& world) {
    const auto ranks = make_tracing_communicator(world.ranks);
    trace::Recorder recorder(false);
    ranks->barrier();
    recorder.set_on(true);
    ranks->barrier();
    all[static_cast<std::size_t>(world.ranks.rank())] = recorder.events();
  });
  EXPECT_EQ(callers(all), (std::map<std::string, std::multiset<int>>{{"all#1 0,1", {0, 1}}}));
}

TEST(TracingCommunicator, FailuresPassAndAreSeen) {
  Events seen;
  const auto traced = [&](const RankBody& body) {
    std::string text = "nothing was thrown";
    try {
      run_threads({.ranks = 3, .deadline_seconds = 0.3}, [&](World& world) {
        const auto tracing = make_tracing_communicator(world.ranks);
        auto its_world = traced_world(*tracing, world);
        const trace::Recorder recorder;
        try {
          body(its_world);
        } catch (...) {
          if (world.ranks.rank() == 0) seen = recorder.events();
          throw;
        }
      });
    } catch (const Error& error) {
      text = error.what();
    }
    return text;
  };
  EXPECT_EQ(traced(fail_while_others_wait), "rank 2: the disk is full");
  EXPECT_THAT(traced([](World& world) { miss_deadline(world, 0.3); }),
              AllOf(HasSubstr("all_reduce"), HasSubstr("step 12, gradients of block.3")));
  ASSERT_EQ(seen.size(), 2u);  // the wait and its collective
  EXPECT_EQ(seen[0].lane, Lane::waits);
  EXPECT_EQ(seen[1].lane, Lane::transfers);
}

}  // namespace
}  // namespace shoal::test
