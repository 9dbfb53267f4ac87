// Weights of products in 8 bits, and whole numbers in place of numbers in general.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/tensor.h"

namespace shoal {

constexpr std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }
// The step between levels up to `most`, where `largest` has the most magnitude_bits: infinity and NaNs are
// above all numbers.
constexpr float step_of(std::uint32_t largest, int most) {
  if (largest >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(largest) / static_cast<float>(most);
}
// The nearest level, the even one of two; 0 where the step is NaN. Adding 1.5 * 2^23 rounds to an integer,
// which is in the last bits of the sum.
constexpr std::int32_t level_of(float x, float step, int most) {
  constexpr float kMagic = 12582912.0f;
  const float level = x / step, bound = static_cast<float>(most);
  const float clamped = std::min(std::max(level == level ? level : 0.0f, -bound), bound);
  return std::bit_cast<std::int32_t>(clamped + kMagic) - std::bit_cast<std::int32_t>(kMagic);
}

// A matrix [N, K] as i8 [N, K + 4]: the K levels of a row, and behind them its step, a float32 that may not
// be aligned. Its numbers are step times level; a step is a 127th of the row's largest magnitude.
class Int8Rows {
 public:
  static constexpr int kMost = 127;
  static constexpr std::int64_t kStep = sizeof(float);  // columns of a step
  static constexpr std::int64_t kLeastColumns = kStep;  // for the memory of a matrix of bfloat16 to have room
  static Shape shape(std::int64_t rows, std::int64_t columns) { return {rows, columns + kStep}; }
  explicit Int8Rows(const Tensor& packed)
      : first_(packed.as<std::int8_t>()), rows_(packed.dim(0)), columns_(packed.dim(1) - kStep) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int8_t* row(std::int64_t n) const { return first_ + n * (columns_ + kStep); }
  float step(std::int64_t n) const {
    float step;
    std::memcpy(&step, row(n) + columns_, sizeof step);
    return step;
  }
  void set_step(std::int64_t n, float step) const { std::memcpy(row(n) + columns_, &step, sizeof step); }

 private:
  std::int8_t* first_;
  std::int64_t rows_, columns_;
};

}  // namespace shoal
