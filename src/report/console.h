// The output of a run on the terminal: log lines and, below them, a progress bar.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/clock.h"
#include "report/metrics.h"

namespace shoal {

// The training time before an evaluation.
struct TrainTime {
  double seconds = 0;  // since the previous evaluation
  std::int64_t steps = 0;
  double total_seconds = 0;  // since the run's first step
};

class Console {
 public:
  Console(std::int64_t total_steps, std::optional<double> entropy_floor);
  ~Console() { clear(); }

  // Logs a line for a step. `seconds_left` is the estimated rest of the run.
  void step(const StepRecord& record, double seconds_left);
  // Each logs one line.
  void evaluation(const EvalRecord& record, const TrainTime& time);
  void test(const TestRecord& record);
  // Redraws the bar, at most 20 times a second; does nothing where standard error is not a terminal.
  void bar(std::int64_t step, double loss, double seconds_left);
  // Removes the bar. Call it before any other output.
  void clear();

 private:
  std::int64_t total_steps_;
  std::optional<double> floor_;
  Stopwatch watch_;
  double drawn_at_ = -1;  // seconds
};

}  // namespace shoal
