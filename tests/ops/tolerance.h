// Bounds of the difference between a backend and the oracle, derived and never tuned.
//
// A sum of n products in floating point, in any order, with or without fused multiply-add, is off by at most
// gamma(n) * sum |a_i b_i| where gamma(n) = n u / (1 - n u) and u is the unit roundoff (Higham, "Accuracy and
// Stability of Numerical Algorithms", 3.1). With k more roundings it is gamma(n + k). The sum of magnitudes
// is computed by the oracle from the absolute values of the inputs. Products of bfloat16 are summed in
// float32, so u is that of float32 for both types, and storing the result costs one roundoff of its type.
// Products of errors are neglected: they are smaller by a factor of u, far less than the slack of the worst
// case.
#pragma once

#include <gtest/gtest.h>

#include <limits>

#include "ops/buffer.h"

namespace shoal::test {

// Half the distance between neighbours of 1: the relative error of rounding to nearest.
constexpr double unit_roundoff(DType type) {
  switch (type) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f64:
      return 0x1p-53;
    default:
      return 0x1p-24;
  }
}
inline constexpr double kUnit = unit_roundoff(DType::f32);

constexpr double gamma(std::int64_t n, DType type = DType::f32) {
  const double nu = static_cast<double>(n) * unit_roundoff(type);
  return nu / (1 - nu);
}

// The documented accuracy of exp, log, tanh, erf and rsqrt in a backend is 4 ulp, and an ulp is at most two
// roundoffs.
inline constexpr double kFunctionError = 8 * kUnit;

// The smallest normal number of both types: results below it may be flushed to zero.
inline constexpr double kSmallest = std::numeric_limits<float>::min();

// Rounding to `type` when the result is stored.
inline Values storage(const Values& expected, DType type) {
  return unit_roundoff(type) * std::abs(expected) + kSmallest;
}

// |actual - expected| <= bound, element by element; reports the element that exceeds its bound most.
inline void expect_within(const Values& actual, const Values& expected, const Values& bound) {
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_EQ(actual.size(), bound.size());
  std::size_t worst = 0, failures = 0;
  double worst_ratio = 1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double ratio = std::abs(actual[i] - expected[i]) / bound[i];
    if (ratio <= 1) continue;
    ++failures;
    if (!(ratio <= worst_ratio)) worst = i, worst_ratio = ratio;
  }
  if (failures == 0) return;
  ADD_FAILURE() << failures << " of " << actual.size() << " elements are out of bounds; the worst is "
                << worst << ": " << actual[worst] << " instead of " << expected[worst] << ", off by "
                << std::abs(actual[worst] - expected[worst]) << " where " << bound[worst] << " is allowed";
}

}  // namespace shoal::test
