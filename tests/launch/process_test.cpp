#include "launch/process.h"

#include <gtest/gtest.h>

#include <csignal>

#include "core/clock.h"

namespace shoal {
namespace {

TEST(CaughtSignals, AreWaitedForAsLongAsAsked) {
  const CaughtSignals signals;
  const Stopwatch watch;
  EXPECT_EQ(signals.wait(0.2), 0);
  EXPECT_GE(watch.seconds(), 0.19);
  EXPECT_LT(watch.seconds(), 4) << "on a busy machine";
  ::raise(SIGTERM);
  EXPECT_EQ(signals.wait(60), SIGTERM);
  EXPECT_LT(watch.seconds(), 30);
}

TEST(ChildProcess, SaysWhyItCannotStart) {
  ChildProcess child({"./no-such-program", "an argument"});
  std::string err;
  for (bool ended = false; !ended;) {
    const auto events = child.wait_for_events(10);
    err += events.err;
    ended = events.ended;
  }
  EXPECT_EQ(err, "cannot start ./no-such-program: No such file or directory\n");
  EXPECT_EQ(child.end().code, 127);
}

TEST(ChildProcess, KnowsWhetherItsOwnChildrenRun) {
  ChildProcess alone({"sleep", "60"}), parent({"sh", "-c", "sleep 60 & wait"});
  const Stopwatch watch;
  while (!parent.has_children() && watch.seconds() < 30) parent.wait_for_events(0.01);
  EXPECT_TRUE(parent.has_children());
  EXPECT_FALSE(alone.has_children());
}

}  // namespace
}  // namespace shoal
