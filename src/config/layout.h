// Resolves a config for a number of ranks.
#pragma once

#include <cstdint>
#include <string_view>

#include "config/config.h"
#include "config/topology_file.h"

namespace shoal {

// Fills in parallel.data and, where they are 0, train.micro_batch and gossip.local_size. Throws UserError,
// with what would do, when `ranks` is not what the config asks for, so many cannot share a global batch, or
// no topology is of so many workers. `ranks_per_host` neighbouring ranks share a host; 0: unknown.
//
// The micro-batch is chosen so that every data rank has one, or in a pipeline four for every stage: the
// largest there is; or with layout determinism, where it must not depend on the ranks, the largest that gives
// eight of them.
void resolve_layout(Config& config, int ranks, int ranks_per_host = 0);

// The first half of that, which use without training needs too: fills in parallel.data.
void resolve_mesh(Config& config, int ranks);

// Ranks of one model: tensor x pipeline.
std::int64_t ranks_of_model(const ParallelConfig& parallel);
// Throws UserError, with what would do, unless data x tensor x pipeline can be `ranks`. `by` started them,
// where that is known: "mpirun".
void check_ranks(const ParallelConfig& parallel, int ranks, std::string_view by = {});

// Throws UserError unless gossip.worker_size divides the data ranks, and parallel.replicate those of a
// worker.
void check_groups(const Config& config, int data_ranks);

// Of a config whose layout is resolved. 1 but for gossip.
int worker_count(const Config& config);
// A scheme's rounds for that many workers, or a file's, which is read.
Topology gossip_topology(const Config& config);

}  // namespace shoal
