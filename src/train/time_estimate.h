// The log's estimates of a run's time: a guess before its first step, and an estimate after a few.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "report/run_time.h"

namespace shoal {

class TimeEstimate {
 public:
  // Guesses from FLOPs: right within a factor of two or so. Nothing is logged where the peak is unknown.
  void guess(const Config& config, const RunWork& left, double step_flops, double peak_flops);

  // Counts a step that has been made in so many seconds. True once, when enough have been timed;
  // seconds_per_step() is known then. The first step, which is slower than the others, is not timed.
  bool count_step(double seconds);
  double seconds_per_step() const { return seconds_per_step_; }

 private:
  std::int64_t timed_ = -1;  // steps
  double seconds_ = 0;       // of them
  double seconds_per_step_ = 0;
};

}  // namespace shoal
