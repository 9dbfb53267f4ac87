// Which windows of a token file a step trains on. Everything is a function of (seed, step, sample): it does
// not depend on ranks, micro-batches or what was drawn before.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "data/sampling.h"
#include "data/token_file.h"

namespace shoal {

// Windows of block_size tokens and one more, starting every `stride` tokens, that fit into `tokens` tokens:
// the samples of one epoch. A stride of 0 means block_size, so that windows share no target. A rest that is
// less than a window is left out.
std::int64_t count_windows(std::int64_t tokens, std::int64_t block_size, std::int64_t stride = 0);

class BatchSampler {
 public:
  // Keeps a reference to `file`. `stride` is as in count_windows (mode epochs). Throws UserError when the
  // file has fewer than block_size + 1 tokens.
  BatchSampler(const TokenFile& file, std::int64_t block_size, Sampling mode, std::uint64_t seed,
               std::int64_t stride = 0);

  // Samples [first_sample, first_sample + samples) of the `global_batch` samples of `step`.
  // tokens, targets i32 [samples, block_size]; target t is the token after token t. Thread-safe.
  void fill(std::int64_t step, std::int64_t first_sample, std::int64_t samples, std::int64_t global_batch,
            std::int32_t* tokens, std::int32_t* targets) const;

  // Where in the file the window of one sample starts.
  std::int64_t start(std::int64_t step, std::int64_t sample, std::int64_t global_batch) const;

  std::int64_t block_size() const { return block_size_; }
  std::int64_t windows() const { return count_windows(file_.size(), block_size_, stride_); }

 private:
  const TokenFile& file_;
  std::int64_t block_size_, stride_;
  Sampling mode_;
  std::uint64_t seed_;
  PhiloxKey key_;
};

// Random windows of a split to evaluate on, which start anywhere, with replacement. Window `index` is a
// function of (seed, split, index): any number of ranks and any micro-batch evaluate the same set.
class EvaluationSampler {
 public:
  // As BatchSampler. `split` is the name of the file's split.
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
  // As BatchSampler; a file needs two tokens at least, or else UserError.
  SequentialSampler(const TokenFile& file, std::int64_t block_size);

  std::int64_t windows() const { return (file_.size() - 1 + block_size_ - 1) / block_size_; }
  std::int64_t targets() const { return file_.size() - 1; }

  // tokens, targets i32 [block_size] of one window. Returns its valid length: block_size, or less in the last
  // one, where tokens are filled up with 0 and targets with -1, which the loss ignores.
  std::int64_t fill(std::int64_t window, std::int32_t* tokens, std::int32_t* targets) const;

 private:
  const TokenFile& file_;
  std::int64_t block_size_;
};

}  // namespace shoal
