// Dropout with an addressed mask: whether an element is kept depends on the seed, the step, the site in the
// model and the token of the global batch, never on ranks, micro-batches or threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/philox.h"

namespace shoal {

// The tokens of the global batch that a tensor [B, T, ...] holds: addresses of its rows.
struct TokenWindow {
  std::int64_t first_sample = 0;    // of the global batch
  std::int64_t first_position = 0;  // of the sequence (not 0 for a slice under sequence parallelism)
  std::int64_t sequence = 0;        // length of a whole sequence, T of the model

  // Row of the global batch, in units of tokens, for local sample b and local position t.
  std::int64_t row(std::int64_t b, std::int64_t t) const {
    return (first_sample + b) * sequence + first_position + t;
  }
};

struct Dropout {
  double p = 0;  // share of elements set to zero
  std::uint64_t seed = 0;
  const std::uint32_t* step = nullptr;  // number of the step, in the backend's memory; null without dropout
  std::uint32_t site = 0;  // which dropout of the model; attention adds its head in the upper half
  TokenWindow window;
  std::int64_t first_column = 0;  // of the whole tensor's columns; a multiple of 16

  bool active() const { return p > 0; }

  // An element is dropped when its 16 random bits are below the threshold. The exact share of dropped
  // elements is threshold / 65536, and the scale of the others is computed from it, so the mean is unbiased.
  std::uint32_t threshold() const {
    return static_cast<std::uint32_t>(std::clamp(std::lround(p * 65536), 0L, 65535L));
  }
  float scale() const { return static_cast<float>(65536.0 / (65536.0 - threshold())); }
};

// The 16 random bits of element `column` in row `row`. A Philox block holds eight values; 16 neighbouring
// columns are the same word and half of 16 neighbouring counters, which is one vector operation: counter 0 is
// (column / 128) * 16 + column % 16, and the value within the block is (column / 16) % 8.
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
