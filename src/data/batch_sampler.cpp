#include "data/batch_sampler.h"

#include <algorithm>
#include <cassert>
#include <utility>

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

// The Philox counter of a draw for a sample: 0 is its position, 1 its file.
PhiloxBlock address(std::int64_t step, std::int64_t sample, std::uint32_t draw) {
  const auto number = static_cast<std::uint64_t>(step);
  return {static_cast<std::uint32_t>(sample), draw, static_cast<std::uint32_t>(number),
          static_cast<std::uint32_t>(number >> 32)};
}

}  // namespace

std::int64_t count_windows(std::int64_t tokens, std::int64_t block_size, std::int64_t stride) {
  assert(block_size >= 1 && stride >= 0);
  if (tokens <= block_size) return 0;
  return (tokens - 1 - block_size) / (stride > 0 ? stride : block_size) + 1;
}

BatchSampler::BatchSampler(std::vector<WeightedFile> files, std::int64_t block_size, Sampling mode,
                           std::uint64_t seed, std::int64_t stride)
    : files_(std::move(files)),
      block_size_(block_size),
      stride_(stride > 0 ? stride : block_size),
      mode_(mode),
      seed_(seed),
      key_(philox_key(seed, PhiloxStream::batch)) {
  assert(files_.size() == 1 || mode == Sampling::random);
  for (const auto& [file, weight] : files_) require(*file, block_size, block_size + 1);
}

std::size_t BatchSampler::source(std::int64_t step, std::int64_t sample) const {
  if (files_.size() == 1) return 0;
  const auto bits = philox(key_, address(step, sample, 1));
  double left = static_cast<double>(bits[0]) * 0x1p-32;
  std::size_t source = 0;
  while (source + 1 < files_.size() && left >= files_[source].weight) left -= files_[source++].weight;
  return source;
}

std::int64_t BatchSampler::start(std::int64_t step, std::int64_t sample, std::int64_t global_batch) const {
  return start_in(*files_[source(step, sample)].file, step, sample, global_batch);
}

std::int64_t BatchSampler::start_in(const TokenFile& file, std::int64_t step, std::int64_t sample,
                                    std::int64_t global_batch) const {
  if (mode_ == Sampling::random) {
    const auto bits = philox(key_, address(step, sample, 0));
    return static_cast<std::int64_t>(to_below(bits, static_cast<std::uint64_t>(file.size() - block_size_)));
  }
  const auto count = static_cast<std::uint64_t>(count_windows(file.size(), block_size_, stride_));
  const auto index = static_cast<std::uint64_t>(step * global_batch + sample);
  const Permutation order(count, seed_, index / count);
  return static_cast<std::int64_t>(order(index % count)) * stride_;
}

void BatchSampler::fill(std::int64_t step, std::int64_t first_sample, std::int64_t samples,
                        std::int64_t global_batch, std::int32_t* tokens, std::int32_t* targets) const {
  assert(first_sample >= 0 && first_sample + samples <= global_batch);
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto& file = *files_[source(step, first_sample + i)].file;
    copy_window(file, start_in(file, step, first_sample + i, global_batch), block_size_,
                tokens + i * block_size_, targets + i * block_size_);
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
