// Element types of tensors and files, and bfloat16 conversion.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shoal {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::i8:
      return 1;
  }
  return 0;
}

// "float32", "bfloat16", ... as the config and PyTorch write them.
std::string_view name_of(DType dtype);

// The upper half of a float: 8 exponent bits, 7 mantissa bits.
struct bfloat16 {
  std::uint16_t bits;
};

constexpr float to_float(bfloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
constexpr float to_float(float value) { return value; }

// Rounds to nearest, ties to even; NaN stays NaN.
constexpr bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <typename T>
constexpr T from_float(float value) {
  if constexpr (sizeof(T) == 2) {
    return to_bfloat16(value);
  } else {
    return value;
  }
}

}  // namespace shoal
