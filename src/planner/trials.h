// Trials: training steps of the layouts that predictions cannot tell apart, where a machine makes them.
#pragma once

#include <vector>

#include "planner/ranked_plan.h"

namespace shoal {

// `plans` are in the order of their predictions. The most promising are tried, and come first, the best one
// before the others. A prediction that was wrong is so for layouts of the same mesh, too, since it is about
// how their ranks wait for each other; so what trials show of a mesh corrects all its predictions.
void try_plans(std::vector<RankedPlan>& plans, Machine& machine);

}  // namespace shoal
