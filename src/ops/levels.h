// Numbers as whole levels of a common step.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "core/dtype.h"

namespace shoal {

constexpr std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }
// The step between levels up to `most`, where `largest` has the most magnitude_bits: infinity and NaNs are
// above all numbers.
constexpr float step_of(std::uint32_t largest, int most) {
  if (largest >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(largest) / static_cast<float>(most);
}
// The nearest level, the even one of two. Adding 1.5 * 2^23 rounds to an integer, which is in the last bits
// of the sum. Without a level (the step is NaN, or zero as x is) it is zero: the bits of a NaN differ between
// processors.
constexpr std::int32_t level_of(float x, float step, int most) {
  constexpr float kMagic = 12582912.0f;
  const float level = x / step, bound = static_cast<float>(most);
  const float clamped = std::min(std::max(level == level ? level : 0.0f, -bound), bound);
  return std::bit_cast<std::int32_t>(clamped + kMagic) - std::bit_cast<std::int32_t>(kMagic);
}

// Writes the levels of x [n], up to `most`, and returns their step.
template <typename Level, typename X>
float to_levels(Level* levels, const X* x, std::int64_t n, int most) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, magnitude_bits(to_float(x[i])));
  const float step = step_of(largest, most);
  for (std::int64_t i = 0; i < n; ++i) levels[i] = static_cast<Level>(level_of(to_float(x[i]), step, most));
  return step;
}

}  // namespace shoal
