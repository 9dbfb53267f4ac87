// The parts of a run's state that every worker of decentralised training has for itself, in checkpoints.
#pragma once

#include <vector>

#include "checkpoint/writer.h"
#include "parallel/data_engine.h"
#include "parallel/mesh.h"
#include "train/model_io.h"

namespace shoal {

// What this rank writes: with several workers, under the names of its own.
std::vector<SliceView> worker_slices(DataEngine& engine, const MeshShape& shape, const MeshPlace& place);

// Collective over the mesh: adds to `info`, on rank 0, what its state is for each worker. Nothing is added
// where there is one.
void add_worker_states(CheckpointInfo& info, const TrainState& mine, Mesh& mesh);

// The state that this rank's worker goes on with, read with the parameters and the optimizer's state: its
// own, where the checkpoint is of as many workers, or else the mean of those that there are.
TrainState resume_worker(CheckpointReader& checkpoint, DataEngine& engine, const MeshShape& shape,
                         const MeshPlace& place);

}  // namespace shoal
