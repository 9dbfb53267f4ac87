// The parts of a run that are settled before its first step.
#pragma once

#include <optional>

#include "checkpoint/run_lock.h"
#include "comm/world.h"
#include "config/plan.h"
#include "data/batch_sampler.h"
#include "data/dataset.h"
#include "optim/lr_schedule.h"

namespace shoal {

// The config with its layout resolved, once all ranks have shown that they have the same.
Config agree_on_config(const Config& config, World& world);

// Opens data.dir on all ranks, the same everywhere, and fills in what the data decides: model.vocab_size,
// train.steps from epochs, and lr_schedule.decay_steps where it is 0. Throws UserError when model and data do
// not fit.
Dataset open_dataset(Config& config, World& world);

// The plan of the run. Throws UserError when the model cannot be spread over the mesh.
RunPlan agree_on_plan(const Config& config, World& world);

// Refuses what cannot fit into memory, then takes the run's directory: rank 0 has the lock. Settles
// init.from = "auto". Throws UserError when an earlier run is there, or a rank does not see the directory.
std::optional<RunLock> take_run_directory(Config& config, const RunPlan& plan, World& world);

// The training sequences of one epoch.
std::int64_t windows_of_epoch(const Config& config, const Dataset& data);

// config.toml in the run's directory.
void write_config(const Config& config);

LrSchedule lr_schedule(const Config& config);

// A few lines about the run for its log: model, data, batch, memory.
void log_summary(const Config& config, const RunPlan& plan, const Dataset& data, const World& world);

}  // namespace shoal
