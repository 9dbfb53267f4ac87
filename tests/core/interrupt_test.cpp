#include "core/interrupt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace shoal {
namespace {

TEST(InterruptGuard, SignalsAreRequests) {
  const auto before = std::signal(SIGTERM, SIG_DFL);
  {
    const InterruptGuard guard;
    EXPECT_STREQ(InterruptGuard::requested(), nullptr);
    std::raise(SIGTERM);
    EXPECT_STREQ(InterruptGuard::requested(), "SIGTERM");
  }
  EXPECT_TRUE(std::signal(SIGTERM, before) == SIG_DFL);
}

// A script's jobs in the background begin with SIGINT ignored.
TEST(InterruptGuard, WhatWasIgnoredStaysSo) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto before = std::signal(signal, SIG_IGN);
    {
      const InterruptGuard guard;
      std::raise(signal);
      EXPECT_STREQ(InterruptGuard::requested(), nullptr);
    }
    EXPECT_TRUE(std::signal(signal, before) == SIG_IGN);
  }
}

// Every guard listens to it, though the one before has left it ignored.
TEST(InterruptGuard, Sigusr1IsAlwaysARequest) {
  for (int run = 0; run < 2; ++run) {
    const InterruptGuard guard;
    std::raise(SIGUSR1);
    EXPECT_STREQ(InterruptGuard::requested(), "SIGUSR1");
  }
}

// Sends SIGTERM after `before` with a stop message.
[[noreturn]] void stop_after(void (*before)()) {
  std::signal(SIGTERM, SIG_DFL);
  set_stop_message("stopped early");
  before();
  std::raise(SIGTERM);
  std::_Exit(0);
}

TEST(StopMessage, IsPrintedUntilItIsCleared) {
  const testing::KilledBySignal killed(SIGTERM);
  EXPECT_EXIT(stop_after([] {}), killed, "shoal: stopped early");
  EXPECT_EXIT(stop_after(clear_stop_message), killed, testing::Not(testing::HasSubstr("stopped")));
  EXPECT_EXIT(stop_after([] { const InterruptGuard run; }), killed,
              testing::Not(testing::HasSubstr("stopped")));
}

}  // namespace
}  // namespace shoal
