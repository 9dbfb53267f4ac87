// Keys of a config file that follow its arguments. A file's micro-batch suits the file's batch, and its
// warm-up the file's length; where an argument, the data or the number of ranks sets another batch or length,
// they are fitted to it. A key that was itself given as an argument stays as it is.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace shoal {

// The largest micro-batch, not above `limit`, that cuts `sequences` into `ranks` micro-batches or more.
int largest_micro_batch(int sequences, int ranks, int limit);

// train.steps replaces the file's train.epochs, and the other way round.
void follow_arguments(Config& config);
// train.micro_batch follows an argument's train.global_batch.
void follow_batch(Config& config);
// The warm-up, and the final decay of wsd, follow steps that come from an argument or, with `from_epochs`,
// from the data.
void follow_steps(Config& config, bool from_epochs = false);
// train.micro_batch follows the ranks: `workers` have `data_ranks` each. Not with layout determinism, where
// it is a part of the result.
void follow_ranks(Config& config, int workers, int data_ranks);

// Logs what has followed.
void log_followed(const Config& config);

}  // namespace shoal
