// What a config leaves to the number of ranks, and what the engine is told of it.
#pragma once

#include "parallel/data_engine.h"
#include "parallel/pipeline.h"
#include "train/config.h"

namespace shoal {

// Fills in parallel.data and, where it is 0, train.micro_batch. Throws UserError, with what would do, when
// `ranks` is not what the config asks for or so many cannot share a global batch.
//
// The micro-batch is chosen so that every rank has one: the largest there is, or with layout determinism,
// where it must not depend on the ranks, the largest that gives eight of them.
void resolve_layout(Config& config, int ranks);

// The first half of that, which use without training needs too: fills in parallel.data.
void resolve_mesh(Config& config, int ranks);

// Throws UserError unless parallel.replicate divides the ranks.
void check_groups(const Config& config, int data_ranks);

// --- of a config whose layout is resolved

MeshShape mesh_shape(const Config& config);
// Throws UserError when this model cannot be spread over the mesh: too few heads, blocks, ...
void check_mesh(const Config& config, const GptConfig& model);

// What a rank has and does. parallel.offload = "disk" goes to nameless files in the run's folder.
ModelPart model_part(const Config& config, const GptConfig& model, const MeshPlace& place);
EngineOptions engine_options(const Config& config, const GptConfig& model, const MeshPlace& place = {});
PipelineOptions pipeline_options(const Config& config, const GptConfig& model, const MeshPlace& place = {});

}  // namespace shoal
