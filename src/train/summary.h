// The first lines of a run's log.
#pragma once

#include "comm/world.h"
#include "config/plan.h"
#include "data/mixture.h"

namespace shoal {

// Logs the model, the data, the batch, the ranks and the memory.
void log_summary(const Config& config, const RunPlan& plan, const Mixture& data, const World& world);

}  // namespace shoal
