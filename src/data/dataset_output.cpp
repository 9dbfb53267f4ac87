#include "data/dataset_output.h"

#include <fmt/format.h>

namespace shoal {
namespace {

std::vector<SplitWriter> open_splits(const std::filesystem::path& folder, std::size_t count,
                                     int bytes_per_token) {
  std::vector<SplitWriter> splits;
  for (std::size_t i = 0; i < count; ++i) {
    splits.emplace_back(folder / fmt::format("{}.bin", kSplitNames[i]), bytes_per_token);
  }
  return splits;
}

}  // namespace

DatasetOutput::DatasetOutput(const std::filesystem::path& folder, std::size_t count,
                             const Tokenizer& tokenizer, int threads)
    : bytes_per_token(token_width(tokenizer)),
      splits(open_splits(folder, count, bytes_per_token)),
      pipeline(tokenizer, splits, threads) {}

}  // namespace shoal
