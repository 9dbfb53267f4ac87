// What a person sees of a run: a line per group of steps and, on a terminal, a progress bar below them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/clock.h"
#include "report/metrics.h"

namespace shoal {

// What training took up to an evaluation.
struct TrainTime {
  double seconds = 0;  // since the evaluation before
  std::int64_t steps = 0;
  double total_seconds = 0;  // since the run's first step
};

class Console {
 public:
  Console(std::int64_t total_steps, std::optional<double> entropy_floor);
  ~Console() { clear(); }

  // One step line, to the log. `seconds_left` is the estimate for the rest of the run.
  void step(const StepRecord& record, double seconds_left);
  // One line each, to the log.
  void evaluation(const EvalRecord& record, const TrainTime& time);
  void test(const TestRecord& record);
  // Redraws the bar, several times a second at most; does nothing where standard error is no terminal.
  void bar(std::int64_t step, double loss, double seconds_left);
  // Takes the bar away, before anything else is printed.
  void clear();

 private:
  std::int64_t total_steps_;
  std::optional<double> floor_;
  Stopwatch watch_;
  double drawn_at_ = -1;  // seconds
};

}  // namespace shoal
