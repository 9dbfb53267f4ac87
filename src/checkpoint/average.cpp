#include "checkpoint/average.h"

#include <nlohmann/json.hpp>

#include "checkpoint/worker_source.h"
#include "checkpoint/writer.h"
#include "core/error.h"

namespace shoal {
namespace {

CheckpointInfo without_workers(CheckpointInfo info) {
  for (auto entry = info.state.begin(); entry != info.state.end();) {
    entry = entry.key().starts_with("worker") ? info.state.erase(entry) : std::next(entry);
  }
  return info;
}

}  // namespace

CheckpointAverage average_workers(CheckpointReader& checkpoint, const std::filesystem::path& root,
                                  const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  WorkerSource mean(checkpoint);
  if (mean.workers() == 1) {
    fail_user(
        "the checkpoint {} is of one model already; only a run whose workers each train one has any to "
        "average",
        checkpoint.directory().string());
  }
  CheckpointAverage average{.workers = mean.workers()};
  std::vector<TensorSlice> slices;
  for (const auto& tensor : tensors_of_one_worker(checkpoint.manifest(), mean.workers())) {
    slices.push_back(whole_slice(tensor.name, tensor.dtype, tensor.shape));
    average.bytes += tensor.bytes();
  }
  average.tensors = slices.size();

  CheckpointWriter writer(root, checkpoint.info().step);
  try {
    writer.copy_shard(0, 1, slices, mean, [&](std::uint64_t done) {
      if (progress) progress(done, average.bytes);
    });
    writer.commit(without_workers(checkpoint.info()), 1);
  } catch (...) {
    writer.abandon();
    throw;
  }
  return average;
}

}  // namespace shoal
