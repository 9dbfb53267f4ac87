// What a config leaves to the number of ranks, and what the engine is told of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/topology_file.h"
#include "parallel/backend_ranks.h"
#include "parallel/data/data_engine.h"
#include "parallel/pipeline/pipeline.h"

namespace shoal {

DType compute_dtype(const Config& config);
// Tensors that the optimizer keeps beside every parameter: moments, and with accum_steps their window's mean
// gradient.
int optimizer_tensors(const Config& config);

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

// --- of a config whose layout is resolved

int worker_count(const Config& config);  // 1 but for gossip
Topology gossip_topology(const Config& config);
int micro_batches_of_worker(const Config& config);  // in a step
MeshShape mesh_shape(const Config& config);
// "2 stages x 4 data x 2 tensor ranks with sequence parallelism"; "" for data ranks alone.
std::string mesh_text(const Config& config);
// Throws UserError when this model cannot be spread over the mesh: too few heads, blocks, ...
void check_mesh(const Config& config, const GptConfig& model);

// The model's ranges of units, in its order: range k is on stage k % stages.
std::vector<UnitRange> unit_ranges(const Config& config, const GptConfig& model);
// A stage's units: "embedding, block.0-3".
std::string stage_text(const Config& config, const GptConfig& model, int stage);

// What a rank has and does. parallel.offload = "disk" goes to nameless files in the run's folder.
ModelPart model_part(const Config& config, const GptConfig& model, const MeshPlace& place);
EngineOptions engine_options(const Config& config, const GptConfig& model, const MeshPlace& place = {});
GpuExchange gpu_exchange(const Config& config);
PipelineOptions pipeline_options(const Config& config, const GptConfig& model, const MeshPlace& place = {});

}  // namespace shoal
