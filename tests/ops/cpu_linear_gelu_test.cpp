// A product and GELU in one op, of the backend under test against the oracle. A backend may or may not fuse
// the two, so GELU may be computed from the product before or after it is rounded for storage.
#include "ops/conformance.h"

namespace shoal::test {
namespace {

class CpuLinearGelu : public Conformance<std::tuple<DType, Shape>> {  // the shape is R, K, N
 protected:
  DType type_ = std::get<0>(GetParam());
  std::int64_t R_ = std::get<1>(GetParam())[0], K_ = std::get<1>(GetParam())[1],
               N_ = std::get<1>(GetParam())[2];
  // cuBLASLt does not document the accuracy of tanh in its epilogue. The hardware's tanh has a relative error
  // of 2^-11 (PTX ISA, tanh.approx.f32), which is acceptable only for results in bfloat16.
  double function_error_ = kFunctionError + (type_ == DType::bf16 ? 0x1p-11 : 0.0);

  // Weights that make the products roughly normal deviates.
  Values weights(std::int64_t n, std::int64_t summed) const {
    return normal_values(n, 2, type_, 0, 1 / std::sqrt(static_cast<double>(summed)));
  }
};

// An error of GELU's argument is multiplied by the slope, which is at most 1.13. The errors of GELU itself
// are as in the tests of GELU alone.
TEST_P(CpuLinearGelu, Forward) {
  const Values x = normal_values(R_ * K_, 1, type_), w = weights(N_ * K_, K_),
               bias = normal_values(N_, 3, type_);
  for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
    for (const bool with_bias : {true, false}) {
      const auto run = [&](const Side& side) {
        const Buffer y = side.compute({R_, N_}), hidden = side.compute({R_, N_}),
                     b = side.compute({N_}, bias);
        side.backend.linear_gelu_forward(y, hidden, side.compute({R_, K_}, x), side.compute({N_, K_}, w),
                                         with_bias ? b : Tensor{}, kind);
        return std::pair(y.values(), hidden.values());
      };
      const Side exact = oracle();
      const Buffer magnitude = exact.full({R_, N_}), b = exact.full({N_}, std::abs(bias));
      exact.backend.linear_forward(magnitude, exact.full({R_, K_}, std::abs(x)),
                                   exact.full({N_, K_}, std::abs(w)), with_bias ? b : Tensor{});
      const auto [y, hidden] = run(cpu(type_));
      const auto [expected_y, expected_hidden] = run(exact);
      Values error = gamma(K_ + 1) * magnitude.values() + storage(expected_hidden, type_);
      if (with_bias) error += rounding_before_bias(expected_hidden, bias, type_, K_, N_);
      expect_within(hidden, expected_hidden, error);
      expect_within(y, expected_y,
                    1.13 * error + (function_error_ + gamma(4)) * std::abs(expected_hidden) +
                        storage(expected_y, type_));
    }
  }
}

// The product may be rounded for storage before it is multiplied by the slope. The slope is that of `hidden`
// as stored. Sums of columns are of results before or after they are rounded.
TEST_P(CpuLinearGelu, Backward) {
  const Values dy = normal_values(R_ * K_, 1, type_), w = weights(K_ * N_, K_),
               hidden = normal_values(R_ * N_, 3, type_, 0, 2), sums_before = normal_values(N_, 4);
  for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
    const auto run = [&](const Side& side) {
      const Buffer dhidden = side.compute({R_, N_}), sums = side.full({N_}, sums_before);
      side.backend.linear_gelu_backward(dhidden, side.compute({R_, K_}, dy), side.compute({K_, N_}, w),
                                        side.compute({R_, N_}, hidden), kind,
                                        side.backend.gelu_backward_sums() ? sums : Tensor{});
      return std::pair(dhidden.values(), sums.values());
    };
    const Side exact = oracle();
    const Buffer product = exact.full({R_, N_}), magnitude = exact.full({R_, N_}),
                 slope = exact.full({R_, N_});
    exact.backend.linear_backward_input(product, exact.full({R_, K_}, dy), exact.full({K_, N_}, w));
    exact.backend.linear_backward_input(magnitude, exact.full({R_, K_}, std::abs(dy)),
                                        exact.full({K_, N_}, std::abs(w)));
    exact.backend.gelu_backward(slope, exact.full({R_, N_}, Values(1.0, hidden.size())),
                                exact.full({R_, N_}, hidden), kind);
    const Values expected = run(exact).first,
                 slope_size = std::abs(hidden) * (0.8 * (1.0 + 0.134 * hidden * hidden));
    const Values error =
        std::abs(slope.values()) * (gamma(K_ + 1) * magnitude.values() + storage(product.values(), type_)) +
        2 * function_error_ * std::abs(product.values()) * (1.0 + slope_size) + storage(expected, type_);
    const auto [dhidden, sums] = run(cpu(type_));
    expect_within(dhidden, expected, error);
    if (!cpu(type_).backend.gelu_backward_sums()) continue;
    Values expected_sums = sums_before, error_of_sums = gamma(R_ + 1) * std::abs(sums_before);
    for (std::int64_t i = 0; i < R_ * N_; ++i) {
      const auto element = static_cast<std::size_t>(i), column = static_cast<std::size_t>(i % N_);
      expected_sums[column] += expected[element];
      error_of_sums[column] +=
          error[element] + gamma(R_ + 1) * (std::abs(expected[element]) + error[element]);
    }
    expect_within(sums, expected_sums, error_of_sums);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuLinearGelu,
                         testing::Combine(kComputeTypes,
                                          testing::Values(Shape{1, 1, 1}, Shape{5, 3, 7}, Shape{33, 17, 64},
                                                          Shape{64, 64, 48}, Shape{100, 100, 17},
                                                          Shape{257, 96, 32})));

}  // namespace
}  // namespace shoal::test
