// Weights of products in 8 bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/tensor.h"
#include "ops/levels.h"

namespace shoal {

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
  // x [K] becomes the row.
  template <typename X>
  void set(std::int64_t n, const X* x) const {
    const float step = to_levels(row(n), x, columns_, kMost);
    std::memcpy(row(n) + columns_, &step, sizeof step);
  }

 private:
  std::int8_t* first_;
  std::int64_t rows_, columns_;
};

}  // namespace shoal
