// Adapts keys of a config file to arguments. The micro-batch in a file suits the file's batch, and the
// warm-up the file's number of steps. Where an argument, the data or the number of ranks changes the batch or
// the steps, the functions below adapt the dependent keys. A key given as an argument is never changed.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace shoal {

// The largest micro-batch, at most `limit`, that divides `sequences` into at least `ranks` micro-batches.
int largest_micro_batch(int sequences, int ranks, int limit);

// An argument train.steps replaces the file's train.epochs, and vice versa.
void follow_arguments(Config& config);
// Adapts train.micro_batch to an argument train.global_batch.
void follow_batch(Config& config);
// Adapts the warm-up, and the final decay of wsd, to train.steps given by an argument or, with `from_epochs`,
// computed from the data.
void follow_steps(Config& config, bool from_epochs = false);
// Adapts train.micro_batch to `workers` workers of `data_ranks` ranks each. Changes nothing with
// run.deterministic = "layout", where the micro-batch is a part of the result.
void follow_ranks(Config& config, int workers, int data_ranks);

// Logs config.followed.
void log_followed(const Config& config);

}  // namespace shoal
