#include "data/batch_sampler.h"

#include <algorithm>
#include <cassert>

#include "core/error.h"
#include "core/hash.h"
#include "core/text.h"
#include "data/permutation.h"

namespace shoal {
namespace {

// A window has block + 1 tokens: the first block are the inputs, the last block the targets.
void copy_window(const TokenFile& file, std::int64_t start, std::int64_t length, std::int32_t* tokens,
                 std::int32_t* targets) {
  file.copy(start, {tokens, static_cast<std::size_t>(length)});
  std::copy(tokens + 1, tokens + length, targets);
  file.copy(start + length, {targets + length - 1, 1});
}

void require(const TokenFile& file, std::int64_t block_size, std::int64_t tokens) {
  assert(block_size >= 1);
  if (file.size() >= tokens) return;
  fail_user(
      "{}: has {} tokens, but a block of {} positions needs at least {}; use more text or a smaller block",
      file.path().string(), with_commas(file.size()), block_size, with_commas(tokens));
}

}  // namespace

std::int64_t count_windows(std::int64_t tokens, std::int64_t block_size, std::int64_t stride) {
  assert(block_size >= 1 && stride >= 0);
  if (tokens <= block_size) return 0;
  return (tokens - 1 - block_size) / (stride > 0 ? stride : block_size) + 1;
}

BatchSampler::BatchSampler(const TokenFile& file, std::int64_t block_size, Sampling mode, std::uint64_t seed,
                           std::int64_t stride)
    : file_(file),
      block_size_(block_size),
      stride_(stride > 0 ? stride : block_size),
      mode_(mode),
      seed_(seed),
      key_(philox_key(seed, PhiloxStream::batch)) {
  require(file, block_size, block_size + 1);
}

std::int64_t BatchSampler::start(std::int64_t step, std::int64_t sample, std::int64_t global_batch) const {
  if (mode_ == Sampling::random) {
    const auto address = static_cast<std::uint64_t>(step);
    const auto bits =
        philox(key_, {static_cast<std::uint32_t>(sample), 0, static_cast<std::uint32_t>(address),
                      static_cast<std::uint32_t>(address >> 32)});
    return static_cast<std::int64_t>(to_below(bits, static_cast<std::uint64_t>(file_.size() - block_size_)));
  }
  const auto count = static_cast<std::uint64_t>(windows());
  const auto index = static_cast<std::uint64_t>(step * global_batch + sample);
  const Permutation order(count, seed_, index / count);
  return static_cast<std::int64_t>(order(index % count)) * stride_;
}

void BatchSampler::fill(std::int64_t step, std::int64_t first_sample, std::int64_t samples,
                        std::int64_t global_batch, std::int32_t* tokens, std::int32_t* targets) const {
  assert(first_sample >= 0 && first_sample + samples <= global_batch);
  for (std::int64_t i = 0; i < samples; ++i) {
    copy_window(file_, start(step, first_sample + i, global_batch), block_size_, tokens + i * block_size_,
                targets + i * block_size_);
  }
}

EvaluationSampler::EvaluationSampler(const TokenFile& file, std::string_view split, std::int64_t block_size,
                                     std::uint64_t seed)
    : file_(file),
      block_size_(block_size),
      key_(philox_key(seed, PhiloxStream::evaluation)),
      split_(fnv1a(split)) {
  require(file, block_size, block_size + 1);
}

std::int64_t EvaluationSampler::start(std::int64_t index) const {
  const auto number = static_cast<std::uint64_t>(index);
  const auto bits =
      philox(key_, {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32),
                    static_cast<std::uint32_t>(split_), static_cast<std::uint32_t>(split_ >> 32)});
  return static_cast<std::int64_t>(to_below(bits, static_cast<std::uint64_t>(file_.size() - block_size_)));
}

void EvaluationSampler::fill(std::int64_t index, std::int32_t* tokens, std::int32_t* targets) const {
  copy_window(file_, start(index), block_size_, tokens, targets);
}

SequentialSampler::SequentialSampler(const TokenFile& file, std::int64_t block_size)
    : file_(file), block_size_(block_size) {
  require(file, block_size, 2);
}

std::int64_t SequentialSampler::fill(std::int64_t window, std::int32_t* tokens, std::int32_t* targets) const {
  assert(window >= 0 && window < windows());
  const std::int64_t start = window * block_size_;
  const std::int64_t valid = std::min(block_size_, file_.size() - 1 - start);
  copy_window(file_, start, valid, tokens, targets);
  std::fill(tokens + valid, tokens + block_size_, 0);
  std::fill(targets + valid, targets + block_size_, -1);
  return valid;
}

}  // namespace shoal
