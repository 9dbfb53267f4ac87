// Compares the first steps of a run that planned itself with the prediction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/trace.h"
#include "planner/prediction.h"

namespace shoal {

class PlanWatch {
 public:
  static constexpr int kSteps = 50, kTimed = 10;  // the last of them are timed

  explicit PlanWatch(const Prediction& predicted) : predicted_(predicted) {}

  // Call it on rank 0 before every step. After kSteps steps it returns a warning when they take more than 20
  // % longer than predicted, with the term that is most off; "" else.
  std::string begin_step();

 private:
  std::string compare() const;

  Prediction predicted_;
  int steps_ = 0;
  std::unique_ptr<trace::Recorder> recorder_;
};

}  // namespace shoal
