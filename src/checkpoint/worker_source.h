// Reads one model from a checkpoint of several workers, or of a model and its moving average.
#pragma once

#include <span>
#include <string>

#include "checkpoint/reader.h"
#include "checkpoint/slice_source.h"
#include "checkpoint/workers.h"

namespace shoal {

int workers_of(const CheckpointReader& checkpoint);  // checkpoint/workers.h

// Reads tensors by plain names: those of one worker, or the mean over all. A checkpoint of one model is read
// as it is, whatever is asked for.
class WorkerSource : public SliceSource {
 public:
  static constexpr int kMean = -1;

  // Throws UserError as workers_of, and when there is no such worker.
  explicit WorkerSource(CheckpointReader& checkpoint, int worker = kMean);
  // From here on parameters are read from the tensor PREFIX + name where the checkpoint has it. Returns
  // whether it has any of that prefix.
  bool prefer(std::string prefix);

  int workers() const { return workers_; }

  // A mean is computed in double, in the order of workers, and rounded to the slice's type, which is float32
  // or float64; scratch memory is bounded, whatever the slice and the number of workers.
  void read(const TensorSlice& slice, std::span<std::byte> out) override;

 private:
  std::string name_here(int worker, const std::string& name) const;

  CheckpointReader& checkpoint_;
  int workers_, worker_;
  std::string preferred_;
};

}  // namespace shoal
