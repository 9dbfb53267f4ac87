// A layout with what its step is predicted to take.
#pragma once

#include "config/config.h"
#include "planner/machine.h"
#include "planner/prediction.h"

namespace shoal {

struct RankedPlan {
  Config config;  // with the layout filled in; trains as it is
  RunPlan plan;
  Prediction prediction;
  Trials tried = {};  // of a step, here
};

}  // namespace shoal
