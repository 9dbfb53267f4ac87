#include "core/core_latency.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>

#include "core/clock.h"

namespace shoal {
namespace {

bool run_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  return sched_setaffinity(0, sizeof cores, &cores) == 0;
}

}  // namespace

std::vector<int> cores_of_thread() {
  cpu_set_t cores;
  std::vector<int> numbers;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return numbers;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &cores)) numbers.push_back(core);
  }
  return numbers;
}

double core_latency(int here, int there) {
  constexpr std::uint32_t kPasses = 100;  // there and back; beside a busy program each may take a time slice
  constexpr double kSeconds = 0.02;
  alignas(64) std::atomic<std::uint32_t> word{0};  // odd: there
  alignas(64) std::atomic<bool> failed{false};
  double least = std::numeric_limits<double>::infinity();
  {
    const std::jthread answer([&](const std::stop_token& stop) {
      if (!run_on(there)) failed = true;
      for (std::uint32_t expected = 1; !failed; expected += 2) {
        while (word.load(std::memory_order_acquire) != expected) {
          if (stop.stop_requested() || failed.load(std::memory_order_relaxed)) return;
        }
        word.store(expected + 1, std::memory_order_release);
      }
    });
    const std::jthread ask([&] {
      if (!run_on(here)) failed = true;
      std::uint32_t sent = 0;
      for (const Stopwatch all; !failed && all.seconds() < kSeconds;) {
        const Stopwatch watch;
        for (std::uint32_t pass = 0; pass < kPasses && !failed.load(std::memory_order_relaxed); ++pass) {
          word.store(sent + 1, std::memory_order_release);
          sent += 2;
          while (word.load(std::memory_order_acquire) != sent && !failed.load(std::memory_order_relaxed)) {
          }
        }
        least = std::min(least, watch.seconds() / (2 * kPasses));
      }
    });
  }
  return failed ? 0 : least;
}

}  // namespace shoal
