// The state that all ranks of one run_threads share, in all groups: failures, ended ranks, the deadline.
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

  // Ends the run: from now on the collectives of every rank throw. Keeps the first reason.
  void stop(const std::string& why);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  void check() const {
    if (stopped()) throw StoppedByPeer();
  }
  std::string why();

  // Called when the rank's body has ended: the rank joins no more collectives.
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
