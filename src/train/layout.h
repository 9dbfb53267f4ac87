// What a config leaves to the number of ranks, and what the engine is told of it.
#pragma once

#include "parallel/data_engine.h"
#include "train/config.h"

namespace shoal {

// Fills in parallel.data and, where it is 0, train.micro_batch. Throws UserError, with what would do, when
// `ranks` is not what the config asks for or so many cannot share a global batch.
//
// The micro-batch is chosen so that every rank has one: the largest there is, or with layout determinism,
// where it must not depend on the ranks, the largest that gives eight of them.
void resolve_layout(Config& config, int ranks);

// Throws UserError unless parallel.replicate divides the ranks.
void check_groups(const Config& config, int data_ranks);

// Of a config whose layout is resolved. parallel.offload = "disk" goes to nameless files in the run's folder.
EngineOptions engine_options(const Config& config);

}  // namespace shoal
