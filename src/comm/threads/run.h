// What all ranks of one run_threads share, whichever groups they form.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "core/error.h"

namespace shoal {

class ThreadsRun {
 public:
  ThreadsRun(int ranks, double deadline_seconds);

  // Ends the run: from now on every rank's collectives throw. The first reason is kept.
  void stop(const std::string& why);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  void check() const {
    if (stopped()) throw StoppedByPeer();
  }
  std::string why();

  // A rank whose body has ended joins no more collectives.
  void set_ended(int rank) { ended_[static_cast<std::size_t>(rank)] = true; }
  bool ended(int rank) const { return ended_[static_cast<std::size_t>(rank)]; }

  double deadline_seconds() const { return deadline_seconds_; }

 private:
  double deadline_seconds_;
  std::vector<std::atomic<bool>> ended_;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::string why_;
};

}  // namespace shoal
