// The splits of a dataset that is being written, and the threads that tokenize for them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "data/prepare_parts.h"
#include "data/split_writer.h"
#include "data/token_pipeline.h"
#include "data/tokenizer.h"

namespace shoal {

struct DatasetOutput {
  // `count` splits: train, val and perhaps test.
  DatasetOutput(const std::filesystem::path& folder, std::size_t count, const Tokenizer& tokenizer,
                int threads);

  int bytes_per_token;
  std::vector<SplitWriter> splits;
  TokenPipeline pipeline;
};

}  // namespace shoal
