#include "core/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

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

}  // namespace
}  // namespace shoal
