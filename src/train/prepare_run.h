// The steps before a run can compute: all ranks agree on the config, the data and the plan, and take the
// run's folder. All but the last three functions are collective.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/run_lock.h"
#include "comm/world.h"
#include "config/plan.h"
#include "data/batch_sampler.h"
#include "data/mixture.h"
#include "optim/lr_schedule.h"

namespace shoal {

// Checks that all ranks were started with the same config, and resolves its layout.
Config agree_on_config(const Config& config, World& world);

// Opens the data and checks that all ranks have the same data. Fills in model.vocab_size where it is 0,
// train.steps from epochs, and lr_schedule.decay_steps where it is 0. Throws UserError when model and data do
// not fit.
Mixture open_data(Config& config, World& world);

// The plan of the run. Throws UserError when the model cannot be spread over the mesh.
RunPlan agree_on_plan(const Config& config, World& world);

// The run's directory, taken by this process.
struct RunDirectory {
  std::optional<RunLock> lock;  // on rank 0
  std::string session;          // a name of this start, the same on all ranks
};

// Checks that the plan fits into memory, then takes the run's directory. Where the run is resumed, writes the
// newest state in the memory of the hosts there (train/restore_from_memory.h). Resolves init.from = "auto".
// Throws UserError when the plan does not fit, when an earlier run is there, or when a rank does not see the
// directory.
RunDirectory take_run_directory(Config& config, const RunPlan& plan, World& world);

// The training sequences of one epoch, which only a run of one dataset has.
std::int64_t windows_of_epoch(const Config& config, const Mixture& data);

// Writes a config into the run's directory.
void write_config(const Config& config, const std::string& name);

LrSchedule lr_schedule(const Config& config);

}  // namespace shoal
