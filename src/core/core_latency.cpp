#include "core/core_latency.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>

#include "core/clock.h"
#include "core/cores.h"

namespace shoal {
namespace {

void run_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

}  // namespace

double core_latency(int here, int there) {
  const auto allowed = allowed_core_numbers();
  for (const int core : {here, there}) {
    if (!std::ranges::binary_search(allowed, core)) return 0;
  }
  constexpr std::uint32_t kPasses = 100;  // there and back; beside a busy program each may take a time slice
  constexpr double kSeconds = 0.02;
  alignas(64) std::atomic<std::uint32_t> word{0};  // odd: there
  double least = std::numeric_limits<double>::infinity();
  {
    const std::jthread answer([&](const std::stop_token& stop) {
      run_on(there);
      for (std::uint32_t expected = 1;; expected += 2) {
        while (word.load(std::memory_order_acquire) != expected) {
          if (stop.stop_requested()) return;
        }
        word.store(expected + 1, std::memory_order_release);
      }
    });
    const std::jthread ask([&] {
      run_on(here);
      std::uint32_t sent = 0;
      for (const Stopwatch all; all.seconds() < kSeconds;) {
        const Stopwatch watch;
        for (std::uint32_t pass = 0; pass < kPasses; ++pass) {
          word.store(sent + 1, std::memory_order_release);
          sent += 2;
          while (word.load(std::memory_order_acquire) != sent) {
          }
        }
        least = std::min(least, watch.seconds() / (2 * kPasses));
      }
    });
  }
  return least;
}

}  // namespace shoal
