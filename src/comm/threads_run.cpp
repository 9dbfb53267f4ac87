#include "comm/threads_run.h"

#include "core/cores.h"

namespace shoal {
namespace {
// About 50 us where every rank has a core: less than it takes to sleep and to be woken. Where ranks share
// cores the one that is waited for may need this one.
constexpr int kSpins = 2000, kSpinsOnSharedCores = 10;
}  // namespace

ThreadsRun::ThreadsRun(int ranks, double deadline_seconds)
    : deadline_seconds_(deadline_seconds),
      spins_(ranks <= usable_cores() ? kSpins : kSpinsOnSharedCores),
      ended_(static_cast<std::size_t>(ranks)) {}

void ThreadsRun::stop(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  if (why_.empty()) why_ = why;
  stopped_.store(true, std::memory_order_release);
}

std::string ThreadsRun::why() {
  const std::scoped_lock lock(mutex_);
  return why_;
}

}  // namespace shoal
