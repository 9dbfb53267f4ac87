// IEEE half precision, for files that hold it; nothing computes with it.
#pragma once

#include <bit>
#include <cstdint>

namespace shoal {

// 5 exponent bits, 10 mantissa bits.
struct float16 {
  std::uint16_t bits;
};

// Exact.
constexpr float to_float(float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu, mantissa = value.bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: units of 2^-24
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f));
  }
  const std::uint32_t widened = exponent == 0x1fu ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | widened << 23 | mantissa << 13);
}

// Rounds to nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
constexpr float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    magnitude = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= std::bit_cast<std::uint32_t>(65520.0f)) {
    magnitude = 0x7c00u;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(0x1p-14f)) {
    magnitude = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - ((127u - 15u) << 23)) >> 13;
  } else {  // the last bit of a float in [0.5, 1) is 2^-24, a subnormal half's unit
    magnitude = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                std::bit_cast<std::uint32_t>(0.5f);
  }
  return {static_cast<std::uint16_t>(sign | magnitude)};
}

}  // namespace shoal
