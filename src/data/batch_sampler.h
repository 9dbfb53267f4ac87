// Chooses the windows of token files that a step trains on. The choice is a function of (seed, step,
// sample): it does not depend on ranks, micro-batches or earlier draws.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/philox.h"
#include "data/sampling.h"
#include "data/token_file.h"

namespace shoal {

// The number of samples of one epoch: windows of block_size + 1 tokens, starting every `stride` tokens, that
// fit into `tokens` tokens. A stride of 0 means block_size, so that windows share no target. A rest shorter
// than a window is left out.
std::int64_t count_windows(std::int64_t tokens, std::int64_t block_size, std::int64_t stride = 0);

// A file, and the share of the samples that are drawn from it.
struct WeightedFile {
  const TokenFile* file;
  double weight = 1;
};

// How many of some samples to draw from a file of this weight: none gets less than its share.
inline std::int64_t share_of(std::int64_t samples, double weight) {
  return static_cast<std::int64_t>(std::ceil(weight * static_cast<double>(samples)));
}

class BatchSampler {
 public:
  // Keeps pointers to the files, whose weights add up to 1; epochs are of one file. `stride`: see
  // count_windows (mode epochs). Throws UserError when a file has fewer than block_size + 1 tokens.
  BatchSampler(std::vector<WeightedFile> files, std::int64_t block_size, Sampling mode, std::uint64_t seed,
               std::int64_t stride = 0);
  BatchSampler(const TokenFile& file, std::int64_t block_size, Sampling mode, std::uint64_t seed,
               std::int64_t stride = 0)
      : BatchSampler({{&file}}, block_size, mode, seed, stride) {}

  // Writes samples [first_sample, first_sample + samples) of the `global_batch` samples of `step`.
  // tokens, targets i32 [samples, block_size]; target t is the token after token t. Thread-safe.
  void fill(std::int64_t step, std::int64_t first_sample, std::int64_t samples, std::int64_t global_batch,
            std::int32_t* tokens, std::int32_t* targets) const;

  // The file that a sample is drawn from, and the position in it where the sample's window starts.
  std::size_t source(std::int64_t step, std::int64_t sample) const;
  std::int64_t start(std::int64_t step, std::int64_t sample, std::int64_t global_batch) const;

  std::int64_t block_size() const { return block_size_; }

 private:
  std::int64_t start_in(const TokenFile& file, std::int64_t step, std::int64_t sample,
                        std::int64_t global_batch) const;

  std::vector<WeightedFile> files_;
  std::int64_t block_size_, stride_;
  Sampling mode_;
  std::uint64_t seed_;
  PhiloxKey key_;
};

// Random windows of a split for evaluation, which start anywhere, with replacement. Window `index` is a
// function of (seed, split, index), so the set depends neither on the number of ranks nor on the micro-batch.
class EvaluationSampler {
 public:
  // Same requirements as BatchSampler. `split` is the name of the file's split.
  EvaluationSampler(const TokenFile& file, std::string_view split, std::int64_t block_size,
                    std::uint64_t seed);

  std::int64_t start(std::int64_t index) const;  // of the window in the file
  // tokens, targets i32 [block_size] of one window.
  void fill(std::int64_t index, std::int32_t* tokens, std::int32_t* targets) const;

 private:
  const TokenFile& file_;
  std::int64_t block_size_;
  PhiloxKey key_;
  std::uint64_t split_;
};

// A whole file in order: every token but the first is a target exactly once.
class SequentialSampler {
 public:
  // Keeps a reference to `file`. Throws UserError when it has fewer than two tokens.
  SequentialSampler(const TokenFile& file, std::int64_t block_size);

  std::int64_t windows() const { return (file_.size() - 1 + block_size_ - 1) / block_size_; }
  std::int64_t targets() const { return file_.size() - 1; }

  // tokens, targets i32 [block_size] of one window. Returns its valid length: block_size, or less in the last
  // window, which is padded with tokens of 0 and targets of -1, which the loss ignores.
  std::int64_t fill(std::int64_t window, std::int32_t* tokens, std::int32_t* targets) const;

 private:
  const TokenFile& file_;
  std::int64_t block_size_;
};

}  // namespace shoal
