// The parts of a run that are settled before its first step.
#pragma once

#include <optional>

#include "data/batch_sampler.h"
#include "data/dataset.h"
#include "optim/lr_schedule.h"
#include "train/config.h"

namespace shoal {

// Opens data.dir and fills in what the data decides: model.vocab_size, train.steps from epochs, and
// lr_schedule.decay_steps where it is 0. Throws UserError when model and data do not fit.
Dataset open_dataset(Config& config);

LrSchedule lr_schedule(const Config& config);

// A few lines about the run for its log: model, data, batch, memory.
void log_summary(const Config& config, const GptConfig& model, const Dataset& data);

// Refuses to resume with another model or data, naming every key that differs; says which other keys changed.
void check_resume(const Config& saved, const Config& now, const std::string& checkpoint);

}  // namespace shoal
