#include "core/signal_mask.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace shoal {
namespace {

std::atomic<int> heard = 0;

class BlockedSignalsTest : public testing::Test {
 protected:
  ~BlockedSignalsTest() override { std::signal(SIGUSR2, before_); }
  void (*before_)(int) = std::signal(SIGUSR2, [](int) { ++heard; });
};

TEST_F(BlockedSignalsTest, ASignalWaitsForTheirEnd) {
  heard = 0;
  {
    const BlockedSignals none;
    std::raise(SIGUSR2);
    EXPECT_EQ(heard, 0);
  }
  EXPECT_EQ(heard, 1);
  std::raise(SIGUSR2);
  EXPECT_EQ(heard, 2);
}

TEST_F(BlockedSignalsTest, ThreadsStartedMeanwhileTakeNone) {
  heard = 0;
  std::thread thread;
  {
    const BlockedSignals none;
    thread = std::thread([] { std::raise(SIGUSR2); });
  }
  thread.join();
  EXPECT_EQ(heard, 0);
}

// A file that is cut short while a product reads it is told of by a handler.
TEST_F(BlockedSignalsTest, WhatAnInstructionRaisesArrives) {
  sigset_t blocked;
  {
    const BlockedSignals none;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  }
  EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
  EXPECT_EQ(sigismember(&blocked, SIGBUS), 0);
}

}  // namespace
}  // namespace shoal
