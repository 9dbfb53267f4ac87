// Whether a run's checkpoints fit on its disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "config/plan.h"

namespace shoal {

double checkpoint_bytes(const RunPlan& plan);

// The most checkpoints that a run has at once: those that are kept, the one that is being written, and the
// best. The number of steps must be resolved.
std::int64_t most_checkpoints(const Config& config);

// Bytes of all files in a folder and the folders in it, without links; 0 where it is not there.
double bytes_in(const std::filesystem::path& folder);

// Why `free` bytes are too few for `most` checkpoints of `each` bytes where `there` bytes of the run's own
// are already; "" where they suffice.
std::string lack_of_space(const std::filesystem::path& run, double free, double each, std::int64_t most,
                          double there);

// Logs the above for a run's folder, which exists.
void warn_of_small_disk(const Config& config, const RunPlan& plan);

}  // namespace shoal
