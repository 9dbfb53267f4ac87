// The figures by which runs are compared in a table.
#pragma once

#include <optional>

#include "report/metrics.h"

namespace shoal {

struct Finals {
  std::optional<EvalRecord> last = {};  // evaluation
  std::optional<EvalRecord> best = {};  // the evaluation with the lowest finite validation loss
  // Medians of the logged steps.
  std::optional<double> tokens_per_s = {};
  std::optional<double> peak_share = {};       // 0..1
  std::optional<double> memory_per_rank = {};  // bytes, the most of all steps
  std::optional<double> entropy_floor = {};    // of the run's data
};

Finals finals_of(const Metrics& metrics);

}  // namespace shoal
