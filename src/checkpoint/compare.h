// Two checkpoints compared tensor by tensor, whatever shards hold them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shoal {

struct TensorDifference {
  std::string name;
  std::string what = {};      // "only in the first", "shape [4] and [8]", ...; empty when the values differ
  std::int64_t elements = 0;  // whose bits differ
  double largest = 0;         // difference of two of them
};

struct CheckpointComparison {
  std::size_t tensors = 0;  // in both
  std::vector<TensorDifference> differences;
};

// Reads all of both; paths as find_checkpoint takes them. Throws UserError when one is missing or damaged,
// Error when they are of another number of workers.
CheckpointComparison compare_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace shoal
