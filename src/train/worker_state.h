// The parts of a run's state that every worker of decentralised training has for itself, in checkpoints.
#pragma once

#include <vector>

#include "checkpoint/writer.h"
#include "parallel/data/data_engine.h"
#include "parallel/mesh.h"
#include "train/model_io.h"

namespace shoal {

// The slices that this rank writes; with several workers, under its worker's names.
std::vector<SliceView> worker_slices(DataEngine& engine, const MeshShape& shape,
                                     const MeshCoordinate& coordinate);

// Collective over the mesh: adds to `info`, on rank 0, what its state is for each worker. Nothing is added
// where there is one.
void add_worker_states(CheckpointInfo& info, const TrainState& mine, Mesh& mesh);

// Reads what the run starts from into this rank's part of the engine, whose state_loaded() is to follow: a
// checkpoint or another program's weights, as config.init.from says. A run that is resumed gets its
// state, and every worker its own, where the checkpoint is of as many workers; otherwise all get the mean.
// Throws UserError when it is damaged or not of this model.
TrainState read_start(const Config& config, const std::filesystem::path& from, DataEngine& engine,
                      Backend& backend, const MeshShape& shape, const MeshCoordinate& coordinate);

}  // namespace shoal
