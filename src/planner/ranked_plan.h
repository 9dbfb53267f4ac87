// A layout with what its step is predicted to take.
#pragma once

#include "config/config.h"
#include "planner/prediction.h"

namespace shoal {

struct RankedPlan {
  Config config;  // with the layout filled in; trains as it is
  RunPlan plan;
  Prediction prediction;
  double tried = 0;  // seconds of a step that was made here; 0: none was
};

}  // namespace shoal
