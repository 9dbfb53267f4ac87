// Numbers taken from a block of kSparseBlock: one in 32 bits, or all in 4 bits each.
#pragma once

#include <bit>
#include <cstdint>

#include "core/dtype.h"
#include "ops/levels.h"

namespace shoal {

constexpr std::int32_t pack_taken(std::uint32_t position, bfloat16 value) {
  return std::bit_cast<std::int32_t>(position << 16 | value.bits);
}
constexpr std::uint32_t position_of(std::int32_t taken) { return std::bit_cast<std::uint32_t>(taken) >> 16; }
constexpr bfloat16 value_of(std::int32_t taken) {
  return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(taken))};
}

// Ascending where magnitudes descend, the first of equal ones first.
constexpr std::uint64_t taking_order(std::uint32_t position, float value) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
  return static_cast<std::uint64_t>(~magnitude) << 32 | position;
}

// A block in 4 bits: one word has the bits of the float32 scale, and number i is nibble i % 8 of word
// 1 + i / 8, a level from -7 to 7 in two's complement. Scales have 20 significant bits, so levels times scale
// are exact.
// `largest` has the most magnitude_bits of the block.
constexpr float int4_scale(std::uint32_t largest) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(step_of(largest, 7)) + 15) & ~15u);
}
constexpr std::uint32_t int4_nibble(float x, float scale) {
  return static_cast<std::uint32_t>(level_of(x, scale, 7)) & 15u;
}
constexpr float int4_value(std::uint32_t nibble, float scale) {
  return static_cast<float>(static_cast<std::int32_t>(nibble << 28) >> 28) * scale;
}

}  // namespace shoal
