// Resolves a config for a number of ranks.
#pragma once

#include <cstdint>
#include <string_view>

#include "config/config.h"
#include "config/topology_file.h"

namespace shoal {

// Sets parallel.data and, where they are 0, train.micro_batch and gossip.local_size. Throws UserError with a
// working alternative when the config asks for another number of ranks, when so many ranks cannot share a
// global batch, or when the topology does not exist for so many workers. `ranks_per_host` neighbouring ranks
// share a host; 0: unknown.
//
// The micro-batch is the largest that gives every data rank one micro-batch, or four per stage in a pipeline.
// With layout determinism it must not depend on the ranks: it is the largest that makes eight micro-batches.
void resolve_layout(Config& config, int ranks, int ranks_per_host = 0);

// The first part of resolve_layout(), also used without training: sets parallel.data.
void resolve_mesh(Config& config, int ranks);

// Ranks of one model: tensor x pipeline.
std::int64_t ranks_of_model(const ParallelConfig& parallel);
// Throws UserError with a working alternative unless data x tensor x pipeline can equal `ranks`. `by` is the
// launcher that started them, if any: "mpirun".
void check_ranks(const ParallelConfig& parallel, int ranks, std::string_view by = {});

// Throws UserError with a working alternative unless `shares` ("workers", "data ranks") can have equally many
// micro-batches of a step, or sequences where train.micro_batch is 0.
void check_shares(const Config& config, int count, std::string_view shares);

// Throws UserError unless gossip.worker_size divides the data ranks, and parallel.replicate the ranks of a
// worker.
void check_groups(const Config& config, int data_ranks);

// The number of gossip's workers, 1 without gossip. The layout must be resolved.
int worker_count(const Config& config);
// The topology of gossip.topology for worker_count() workers; reads the file where it names one.
Topology gossip_topology(const Config& config);

}  // namespace shoal
