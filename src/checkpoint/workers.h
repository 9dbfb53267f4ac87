// Checkpoints of runs in which several workers each train a model of their own (gossip): every tensor is
// there once per worker, as "worker.3.NAME", and the state's "workers" is their number. A checkpoint of one
// model has plain names and no such field.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"

namespace shoal {

// Fields of CheckpointInfo::state: the number of workers, and the state that each has for itself.
inline constexpr const char *kWorkersField = "workers", *kWorkerStatesField = "worker_states";

std::string worker_tensor_name(int worker, std::string_view name);

// The number of workers in a checkpoint; 1 if its tensors have plain names. Throws UserError naming
// `directory` when the number is missing or does not fit the tensors: every worker must have the same ones,
// and there must be no others.
int workers_of(const Manifest& manifest, const std::filesystem::path& directory);

// The tensors of one worker's checkpoint: plain names, in the order of worker 0's, without slices.
std::vector<TensorRecord> tensors_of_one_worker(const Manifest& manifest, int workers);

}  // namespace shoal
