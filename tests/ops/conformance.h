// The fixture of the conformance tests: the backend under test on one side, the oracle in double on the
// other. The tests are compiled once, and linked with what under_test.h declares of the cpu backend and, in
// another program, of the cuda backend.
#pragma once

#include <string>

#include "ops/buffer.h"
#include "ops/reference/reference.h"
#include "ops/tolerance.h"
#include "ops/under_test.h"

namespace shoal::test {

// cuBLASLt rounds the sums of a product before it adds the bias where rows of bfloat16 are not multiples of
// 16 bytes (seen on an H200). Sums are at most |result| + |bias|.
inline Values rounding_before_bias(const Values& result, const Values& bias, DType type, std::int64_t K,
                                   std::int64_t N) {
  if (kBiasAfterRounding && type == DType::bf16 && (K % 8 != 0 || N % 8 != 0)) {
    return storage(std::abs(result) + std::abs(bias).max(), type);
  }
  return Values(0.0, result.size());
}

// The sums of a norm's gradient, which linear_backward_weight then need not make, for rows [R, C].
inline void expect_sums_of_gradient(const Side& side, std::int64_t R, std::int64_t C) {
  SCOPED_TRACE((Shape{R, C}).to_string());
  const std::int64_t n = R * C;
  const Buffer x = side.stream({1, R, C}, normal_values(n, 1, side.stream_type)),
               dy = side.compute({R, C}, normal_values(n, 2, side.compute_type)),
               scale = side.compute({C}, normal_values(C, 3, side.compute_type)), y = side.compute({R, C}),
               mean = side.full({R}), rstd = side.full({R});
  side.backend.layernorm_forward(y, mean, rstd, Tensor(x).reshaped({R, C}), scale, scale);
  for (const bool with_branch : {true, false}) {
    const Buffer dx = side.stream({1, R, C}, normal_values(n, 4, side.stream_type)),
                 dbranch = side.compute({1, R, C}), dgamma = side.full({C}), dbeta = side.full({C}),
                 sums = side.full({C}, normal_values(C, 5));
    side.backend.layernorm_residual_backward({.norm = {.dx = dx,
                                                       .dgamma = dgamma,
                                                       .dbeta = dbeta,
                                                       .dy = dy,
                                                       .x = Tensor(x).reshaped({R, C}),
                                                       .gamma = scale,
                                                       .mean = mean,
                                                       .rstd = rstd},
                                              .dbranch = with_branch ? Tensor(dbranch) : Tensor{},
                                              .sums = sums});
    Values expected(0.0, static_cast<std::size_t>(C)), magnitude = expected;
    const Values result = dx.values();
    for (std::size_t i = 0; i < result.size(); ++i) {
      expected[i % static_cast<std::size_t>(C)] += result[i];
      magnitude[i % static_cast<std::size_t>(C)] += std::abs(result[i]);
    }
    expect_within(sums.values(), expected, gamma(R) * magnitude);
  }
}

template <typename Param>
class Conformance : public testing::TestWithParam<Param> {
 protected:
  // The backend under test.
  Side cpu(DType compute_type = DType::f32) const { return {*cpu_, compute_type}; }
  Side cpu(const Types& types) const { return {*cpu_, types.compute, DType::f32, types.stream}; }
  Side oracle() const { return {*oracle_, DType::f64, DType::f64}; }

 private:
  std::shared_ptr<Backend> cpu_ = backend_under_test(2);
  std::unique_ptr<Backend> oracle_ = make_reference_backend();
};

inline const auto kComputeTypes = testing::Values(DType::f32, DType::bf16);

// Dropout of one tenth, in the middle of a global batch. Side::at_step() sets the step.
inline Dropout some_dropout(std::int64_t sequence) {
  return {.p = 0.1, .seed = 11, .site = 13, .window = {.first_sample = 5, .sequence = sequence}};
}

}  // namespace shoal::test

namespace shoal {
// Prints the parameters of failing tests, for GoogleTest.
inline void PrintTo(DType type, std::ostream* out) { *out << name_of(type); }
inline void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.to_string(); }
namespace test {
inline void PrintTo(const Types& types, std::ostream* out) { *out << types.name(); }
}  // namespace test
}  // namespace shoal
