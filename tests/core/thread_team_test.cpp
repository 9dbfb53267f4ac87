#include "core/thread_team.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace shoal::test {
namespace {

using testing::Each;

void wait_until(const std::atomic<int>& count, int value) {
  while (count < value) std::this_thread::yield();
}

TEST(ThreadTeam, RunsEveryTaskOnce) {
  for (const int size : {1, 2, 3, 8}) {
    ThreadTeam team(size);
    for (const std::int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> runs(static_cast<std::size_t>(tasks));
      team.run(tasks, [&](std::int64_t task, int) { ++runs[static_cast<std::size_t>(task)]; });
      EXPECT_THAT(runs, Each(1)) << tasks << " tasks, " << size << " members";
    }
  }
}

// Loops right after each other: a member that comes late to one may find the next.
TEST(ThreadTeam, KeepsLoopsApart) {
  ThreadTeam team(4);
  for (int loop = 0; loop < 20000; ++loop) {
    std::vector<int> written(static_cast<std::size_t>(1 + loop % 9), -1);
    team.run(std::ssize(written),
             [&, loop](std::int64_t task, int) { written[static_cast<std::size_t>(task)] = loop; });
    ASSERT_THAT(written, Each(loop));
  }
}

TEST(ThreadTeam, MembersRunAtOnceEachWithItsOwnPart) {
  ThreadTeam team(3);
  for (int loop = 0; loop < 10; ++loop) {
    std::atomic<int> begun = 0;
    std::vector<int> member_of(6);
    team.run(6, [&](std::int64_t task, int member) {
      member_of[static_cast<std::size_t>(task)] = member;
      ++begun;
      wait_until(begun, 3);
    });
    EXPECT_EQ(member_of[0], 0);
    EXPECT_EQ(member_of[2], 1);
    EXPECT_EQ(member_of[4], 2);
  }
}

TEST(ThreadTeam, TasksOfALateMemberAreRunByOthers) {
  ThreadTeam team(2);
  std::atomic<int> done = 0;
  team.run(8, [&](std::int64_t task, int) {
    if (task == 4) wait_until(done, 7);  // the second member's first
    ++done;
  });
  EXPECT_EQ(done, 8);
}

TEST(ThreadTeam, WakesMembersThatSleep) {
  ThreadTeam team(2);
  for (int loop = 0; loop < 5; ++loop) {
    std::atomic<int> begun = 0;
    team.run(2, [&](std::int64_t, int) {
      ++begun;
      wait_until(begun, 2);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

TEST(ThreadTeam, WaitsForATaskThatTakesLong) {
  ThreadTeam team(2);
  std::atomic<int> begun = 0, done = 0;
  team.run(2, [&](std::int64_t, int member) {
    ++begun;
    wait_until(begun, 2);
    if (member == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    ++done;
  });
  EXPECT_EQ(done, 2);
}

TEST(ThreadTeam, ThrowsWhatATaskThrows) {
  ThreadTeam team(3);
  std::atomic<int> runs = 0;
  const auto fail_at_5 = [&](std::int64_t task, int) {
    ++runs;
    if (task == 5) throw std::runtime_error("the fifth");
  };
  EXPECT_THROW(team.run(20, fail_at_5), std::runtime_error);
  EXPECT_EQ(runs, 20);
  std::atomic<std::int64_t> total = 0;
  team.run(20, [&](std::int64_t task, int) { total += task; });
  EXPECT_EQ(total, 190);
}

TEST(ThreadTeam, RunsLaterWorkOnceAmongLoops) {
  for (const int size : {1, 2, 3, 8}) {
    ThreadTeam team(size);
    std::array<std::vector<int>, 20> runs;
    std::uint32_t last = 0;
    for (auto& run : runs) {
      run.resize(200);
      last =
          team.later(std::ssize(run), [&run](std::int64_t task) { ++run[static_cast<std::size_t>(task)]; });
      std::vector<int> of_loop(50);
      team.run(50, [&](std::int64_t task, int) { ++of_loop[static_cast<std::size_t>(task)]; });
      ASSERT_THAT(of_loop, Each(1));
    }
    team.finish(last);
    for (const auto& run : runs) EXPECT_THAT(run, Each(1)) << size << " members";
  }
}

TEST(ThreadTeam, LoopsDoNotWaitForLaterWork) {
  ThreadTeam team(2);
  std::atomic<int> loops = 0, begun = 0;
  team.later(1, [&](std::int64_t) {
    ++begun;
    wait_until(loops, 3);
  });
  wait_until(begun, 1);
  while (loops < 3) {
    team.run(4, [](std::int64_t, int) {});
    ++loops;
  }
  team.finish();
}

TEST(ThreadTeam, AllMembersHelpToFinishLaterWork) {
  ThreadTeam team(3);
  std::atomic<int> begun = 0;
  bool second = false;
  const auto first = team.later(3, [&](std::int64_t) {
    ++begun;
    wait_until(begun, 3);  // each task is another member's
  });
  const auto then = team.later(1, [&](std::int64_t) { second = true; });
  team.finish(first);
  EXPECT_EQ(begun, 3);
  team.finish(then);
  EXPECT_TRUE(second);
}

TEST(ThreadTeam, EndsWithoutALoop) { ThreadTeam(4).size(); }

}  // namespace
}  // namespace shoal::test
