// The launcher's decisions: which hosts and ranks, when to stop for others, when to go on.
#include "launch/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::test {
namespace {

const LayoutOf kAnyNumber = [](int, int) { return RankLayout{}; };

// Layouts of a model that is on `ranks_of_model` ranks.
LayoutOf multiples_of(int ranks_of_model) {
  return [=](int ranks, int) {
    return RankLayout{.objection = ranks % ranks_of_model == 0 ? "" : fmt::format("{} is odd", ranks)};
  };
}

TEST(Placement, TakesAllTheRoom) {
  const std::vector<Host> hosts = {{"a", 2}, {"b", 3}};
  const auto all = place_ranks(hosts, 5, 1, kAnyNumber);
  EXPECT_EQ(all.ranks, 5);
  EXPECT_EQ(all.hosts, hosts);
  EXPECT_EQ(all.objection, "");
  EXPECT_EQ(place_ranks({}, 4, 4, kAnyNumber).ranks, 4);  // mpirun knows where
}

TEST(Placement, TakesTheLargestNumberThatHasALayout) {
  const auto fewer = place_ranks({{"a", 2}, {"b", 1}, {"c", 2}}, 5, 1, multiples_of(3));
  EXPECT_EQ(fewer.ranks, 3);
  EXPECT_EQ(fewer.hosts, (std::vector<Host>{{"a", 2}, {"b", 1}}));  // without c, which has no ranks
  EXPECT_EQ(fewer.objection, "5 is odd");

  const auto none = place_ranks({{"a", 5}}, 5, 4, multiples_of(3));
  EXPECT_EQ(none.ranks, 0);
  EXPECT_EQ(none.objection, "5 is odd");
  EXPECT_EQ(place_ranks({{"a", 2}}, 2, 3, kAnyNumber).ranks, 0);  // less room than allowed
  EXPECT_EQ(place_ranks({}, 0, 0, kAnyNumber).ranks, 0);
}

// A layout takes milliseconds to find, and a cluster may have room for many more ranks than a run.
TEST(Placement, AsksForNoLayoutOfMoreRanksThanThereCanBe) {
  std::vector<int> asked;
  const auto layout_of = [&](int ranks, int) {
    asked.push_back(ranks);
    return RankLayout{.objection = ranks > 3 ? fmt::format("not {}", ranks) : ""};
  };
  const auto found = place_ranks({}, 100'000, 1, layout_of, 5);
  EXPECT_EQ(found.ranks, 3);
  EXPECT_EQ(found.objection, "not 100000");
  EXPECT_THAT(asked, ::testing::ElementsAre(100'000, 5, 4, 3));
}

TEST(Placement, TellsTheLayoutOfTheRanksOfAHost) {
  int seen = -1;
  place_ranks({{"a", 4}, {"b", 4}}, 6, 1, [&](int, int ranks_per_host) {
    seen = ranks_per_host;
    return RankLayout{};
  });
  EXPECT_EQ(seen, 2);
}

TEST(Placement, RanksMoveForMoreRoomAndFromHostsThatAreGone) {
  const std::vector<Host> a = {{"a", 2}}, b = {{"b", 2}}, both = {{"a", 2}, {"b", 2}};
  const auto on = [](const std::vector<Host>& hosts) {
    return place_ranks(hosts, total_slots(hosts), 1, kAnyNumber);
  };
  EXPECT_TRUE(should_move(on(a), on(both), both));
  EXPECT_TRUE(should_move(on(both), on(a), a));
  EXPECT_TRUE(should_move(on(a), on(b), b));  // as many ranks, elsewhere
  EXPECT_TRUE(should_move(on(a), on({{"a", 1}}), {{"a", 1}}));

  EXPECT_FALSE(should_move(on(both), on(both), both));
  EXPECT_FALSE(should_move(on(a), {}, {}));  // there is nowhere to go
  // A host more, of which the layout or -n has no use.
  EXPECT_FALSE(should_move(on(b), place_ranks(both, 2, 1, kAnyNumber), both));
}

TEST(NextAttempt, EndsWithTheRunOrByTheUser) {
  EXPECT_EQ(next_attempt({}), NextAttempt::none);
  EXPECT_EQ(next_attempt({.failed = true, .stopped = true}), NextAttempt::none);
  EXPECT_EQ(next_attempt({.stopped = true, .moved = true}), NextAttempt::none);
  EXPECT_EQ(next_attempt({.failed = true, .refused = true}), NextAttempt::none);
  EXPECT_EQ(next_attempt({.failed = true, .refused = true, .moved = true}), NextAttempt::none);
}

TEST(NextAttempt, HostsThatComeAndGoUseUpNoRestart) {
  EXPECT_EQ(next_attempt({.moved = true}), NextAttempt::free);
  EXPECT_EQ(next_attempt({.failed = true, .moved = true}), NextAttempt::free);  // stopped before step 1
  EXPECT_EQ(next_attempt({.failed = true, .lost_host = true}), NextAttempt::free);
  EXPECT_EQ(next_attempt({.failed = true, .explained = true, .moved = true, .lost_host = true}),
            NextAttempt::free);
}

TEST(NextAttempt, OthersDo) {
  EXPECT_EQ(next_attempt({.failed = true}), NextAttempt::counted);
  EXPECT_EQ(next_attempt({.failed = true, .progressed = true}), NextAttempt::counted);
  EXPECT_EQ(next_attempt({.failed = true, .explained = true, .moved = true}), NextAttempt::counted);
  EXPECT_EQ(next_attempt({.failed = true, .progressed = true, .new_host = true}), NextAttempt::counted);
}

TEST(NextAttempt, ANewHostThatBreaksTheRunIsLeftOut) {
  EXPECT_EQ(next_attempt({.failed = true, .new_host = true}), NextAttempt::without);
  EXPECT_EQ(next_attempt({.failed = true, .explained = true, .new_host = true}), NextAttempt::without);
  EXPECT_EQ(next_attempt({.failed = true, .lost_host = true, .new_host = true}), NextAttempt::without);
}

}  // namespace
}  // namespace shoal::test
