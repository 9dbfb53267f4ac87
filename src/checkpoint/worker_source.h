// Checkpoints of runs in which several workers each train a model of their own (gossip): every tensor is
// there once per worker, as "worker.3.NAME", and the state's "workers" is their number. A checkpoint of one
// model has plain names and no such field.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/slice_source.h"

namespace shoal {

// Of CheckpointInfo::state: how many, and what else of the state each one has for itself.
inline constexpr const char *kWorkersField = "workers", *kWorkerStatesField = "worker_states";

std::string worker_tensor_name(int worker, std::string_view name);

// How many workers a checkpoint is of: 1 where it has plain names. Throws UserError naming `directory` when
// the number is none, or is not that of the tensors: all workers have the same, and nobody else has any.
int workers_of(const Manifest& manifest, const std::filesystem::path& directory);
int workers_of(const CheckpointReader& checkpoint);

// What one worker's checkpoint would list: plain names, in the order of worker 0's, without slices.
std::vector<TensorRecord> tensors_of_one_worker(const Manifest& manifest, int workers);

// Reads tensors by plain names: those of one worker, or the mean over all. A checkpoint of one model is read
// as it is, whatever is asked for.
class WorkerSource : public SliceSource {
 public:
  static constexpr int kMean = -1;

  // Throws UserError as workers_of, and when there is no such worker.
  explicit WorkerSource(CheckpointReader& checkpoint, int worker = kMean);

  int workers() const { return workers_; }

  // A mean is computed in double, in the order of workers, and rounded to the slice's type, which is float32
  // or float64; scratch memory is bounded, whatever the slice and the number of workers.
  void read(const TensorSlice& slice, std::span<std::byte> out) override;

 private:
  CheckpointReader& checkpoint_;
  int workers_, worker_;
};

}  // namespace shoal
