#include "comm/threads/run.h"

namespace shoal {

ThreadsRun::ThreadsRun(int ranks, double deadline_seconds)
    : deadline_seconds_(deadline_seconds), ended_(static_cast<std::size_t>(ranks)) {}

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
