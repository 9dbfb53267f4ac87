// One model made of the models of several workers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/reader.h"

namespace shoal {

struct CheckpointAverage {
  int workers = 0;  // that it was made of
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;  // of them
};

// Writes root/step-N: every tensor, parameters and what the optimizer keeps alike, is the mean over the
// workers under its plain name; config, model and state are as they were, without the keys of the state that
// begin with "worker". It is whole or absent, and no more than a piece of a tensor is in memory. `progress`
// is told the bytes written so far, and of how many. Throws UserError when the checkpoint is of one model or
// damaged, or the average cannot be written.
CheckpointAverage average_workers(CheckpointReader& checkpoint, const std::filesystem::path& root,
                                  const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace shoal
