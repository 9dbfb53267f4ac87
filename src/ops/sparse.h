// A number taken from a block, in 32 bits.
#pragma once

#include <bit>
#include <cstdint>

#include "core/dtype.h"

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

}  // namespace shoal
