// A number that threads wait for.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/poll.h"

namespace shoal {

class AwaitedCount {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }
  // Sets the value to 0, while no thread waits.
  void reset() { value_.store(0, std::memory_order_relaxed); }
  // Adds and returns the result. Threads that sleep do not see it before wake().
  std::uint32_t add(std::uint32_t more = 1) { return value_.fetch_add(more) + more; }
  void wake();
  // Waits until the value is not `old`, and returns it. Polls for a while, then sleeps; `before_sleep` is
  // called in between.
  template <typename F>
  std::uint32_t wait_for_change(std::uint32_t old, F&& before_sleep) {
    if (poll([&] { return value() != old; })) return value();
    before_sleep();
    return sleep(old);
  }

 private:
  std::uint32_t sleep(std::uint32_t old);

  std::atomic<std::uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};

}  // namespace shoal
