// Dropout whose mask is addressed: an element's fate depends on the seed, the step, where in the model it
// stands and which token of the global batch it belongs to, never on ranks, micro-batches or threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/philox.h"

namespace shoal {

// Which tokens of the global batch a tensor [B, T, ...] holds, so that its rows can be addressed globally.
struct TokenWindow {
  std::int64_t first_sample = 0;    // of the global batch
  std::int64_t first_position = 0;  // of the sequence (not 0 for a slice under sequence parallelism)
  std::int64_t sequence = 0;        // whole sequence length, T of the model

  // Row of the global batch, in units of tokens, for local sample b and local position t.
  std::int64_t row(std::int64_t b, std::int64_t t) const {
    return (first_sample + b) * sequence + first_position + t;
  }
};

struct Dropout {
  double p = 0;  // share of elements set to zero
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  // Backends that record, in their memory: what takes the place of `step`.
  const std::uint32_t* now = nullptr;
  std::uint32_t site = 0;  // which dropout of the model; attention adds its head in the upper half
  TokenWindow window;

  bool active() const { return p > 0; }

  // An element is dropped when its 16 random bits are below this. The share that is really dropped is
  // threshold / 65536, and the scale of what is kept is its exact complement, so the mean is unbiased.
  std::uint32_t threshold() const {
    return static_cast<std::uint32_t>(std::clamp(std::lround(p * 65536), 0L, 65535L));
  }
  float scale() const { return static_cast<float>(65536.0 / (65536.0 - threshold())); }
};

// The 16 random bits of element `column` in row `row`. A Philox block holds eight values; they are laid out
// so that 16 neighbouring columns are the same word and half of 16 neighbouring counters, which is one vector
// operation: counter 0 is (column / 128) * 16 + column % 16, and the value within the block is (column / 16)
// % 8.
constexpr std::uint32_t dropout_counter0(std::int64_t column) {
  return static_cast<std::uint32_t>(column / 128 * 16 + column % 16);
}
constexpr std::uint32_t dropout_bits(PhiloxKey key, std::uint32_t step, std::uint32_t site, std::int64_t row,
                                     std::int64_t column) {
  const auto block = philox(key, {dropout_counter0(column), static_cast<std::uint32_t>(row), site, step});
  const auto value = static_cast<std::uint32_t>(column / 16 % 8);
  return block[value / 2] >> (16 * (value % 2)) & 0xffffu;
}

constexpr std::uint32_t attention_site(std::uint32_t site, std::int64_t head) {
  return site | static_cast<std::uint32_t>(head) << 16;
}

}  // namespace shoal
