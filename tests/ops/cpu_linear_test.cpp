// Matrix products of the cpu backend against the oracle.
#include "ops/conformance.h"

namespace shoal::test {
namespace {

struct Types {
  DType in, out;
};
void PrintTo(const Types& types, std::ostream* out) {
  *out << name_of(types.in) << " to " << name_of(types.out);
}

class CpuLinear : public Conformance<std::tuple<Types, Shape>> {  // the shape is R, K, N
 protected:
  Types types_ = std::get<0>(GetParam());
  std::int64_t R_ = std::get<1>(GetParam())[0], K_ = std::get<1>(GetParam())[1],
               N_ = std::get<1>(GetParam())[2];
  Values x_ = normal_values(R_ * K_, 1, types_.in), w_ = normal_values(N_ * K_, 2, types_.in),
         bias_ = normal_values(N_, 3, types_.in), dy_ = normal_values(R_ * N_, 4, types_.in);
};

TEST_P(CpuLinear, Forward) {
  for (const bool with_bias : {true, false}) {
    const auto run = [&](const Side& side, DType out, const Values& x, const Values& w, const Values& bias) {
      const Buffer y{side.backend, out, {R_, N_}}, b = side.compute({N_}, bias);
      side.backend.linear_forward(y, side.compute({R_, K_}, x), side.compute({N_, K_}, w),
                                  with_bias ? b : Tensor{});
      return y.values();
    };
    const Values expected = run(oracle(), DType::f64, x_, w_, bias_);
    const Values magnitude = run(oracle(), DType::f64, std::abs(x_), std::abs(w_), std::abs(bias_));
    expect_within(run(cpu(types_.in), types_.out, x_, w_, bias_), expected,
                  gamma(K_ + 1) * magnitude + storage(expected, types_.out) +
                      rounding_before_bias(expected, bias_, types_.out, K_, N_));
  }
}

TEST_P(CpuLinear, BackwardInput) {
  const auto run = [&](const Side& side, DType out, const Values& dy, const Values& w) {
    const Buffer dx{side.backend, out, {R_, K_}};
    side.backend.linear_backward_input(dx, side.compute({R_, N_}, dy), side.compute({N_, K_}, w));
    return dx.values();
  };
  const Values expected = run(oracle(), DType::f64, dy_, w_);
  const Values magnitude = run(oracle(), DType::f64, std::abs(dy_), std::abs(w_));
  expect_within(run(cpu(types_.in), types_.out, dy_, w_), expected,
                gamma(N_) * magnitude + storage(expected, types_.out));
}

TEST_P(CpuLinear, BackwardWeight) {
  const Values dw0 = normal_values(N_ * K_, 5), dbias0 = normal_values(N_, 6);
  for (const bool with_bias : {true, false}) {
    const auto run = [&](const Side& side, const Values& dy, const Values& x, const Values& dw_before,
                         const Values& dbias_before) {
      const Buffer dw = side.full({N_, K_}, dw_before), dbias = side.full({N_}, dbias_before);
      side.backend.linear_backward_weight(dw, with_bias ? dbias : Tensor{}, side.compute({R_, N_}, dy),
                                          side.compute({R_, K_}, x), false);
      return std::pair(dw.values(), dbias.values());
    };
    const auto [dw, dbias] = run(cpu(types_.in), dy_, x_, dw0, dbias0);
    const auto [expected_dw, expected_dbias] = run(oracle(), dy_, x_, dw0, dbias0);
    const auto [dw_size, dbias_size] =
        run(oracle(), std::abs(dy_), std::abs(x_), std::abs(dw0), std::abs(dbias0));
    expect_within(dw, expected_dw, gamma(R_ + 1) * dw_size + storage(expected_dw, DType::f32));
    expect_within(dbias, expected_dbias, gamma(R_ + 1) * dbias_size + storage(expected_dbias, DType::f32));
  }
}

// Overwriting gives what adding to zeros gives, whatever was there. (On a GPU the two may be computed by
// different algorithms, each within the bound of any order of the sums.)
TEST_P(CpuLinear, BackwardWeightOverwrites) {
  const Side exact = oracle();
  const Buffer magnitude = exact.full({N_, K_});
  exact.backend.linear_backward_weight(magnitude, {}, exact.compute({R_, N_}, std::abs(dy_)),
                                       exact.compute({R_, K_}, std::abs(x_)), false);
  for (const Side& side : {cpu(types_.in), oracle()}) {
    const Buffer zeros = side.full({N_, K_}),
                 rubbish = side.full({N_, K_}, Values(std::numeric_limits<float>::quiet_NaN(), N_ * K_));
    const Buffer dy = side.compute({R_, N_}, dy_), x = side.compute({R_, K_}, x_);
    side.backend.linear_backward_weight(zeros, {}, dy, x, false);
    side.backend.linear_backward_weight(rubbish, {}, dy, x, true);
    if (side.backend.name() == "cuda") {
      expect_within(rubbish.values(), zeros.values(), 2 * gamma(R_) * magnitude.values() + kSmallest);
    } else {
      EXPECT_TRUE((rubbish.values() == zeros.values()).min());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuLinear,
    testing::Combine(testing::Values(Types{DType::f32, DType::f32}, Types{DType::bf16, DType::bf16},
                                     Types{DType::bf16, DType::f32}),
                     testing::Values(Shape{1, 1, 1}, Shape{1, 48, 100}, Shape{5, 3, 7}, Shape{33, 17, 65},
                                     Shape{64, 64, 48}, Shape{100, 100, 17}, Shape{257, 96, 33},
                                     Shape{2, 257, 5}, Shape{7, 100, 1003})));
// More rows, columns and terms of a sum than one block of the cpu backend's own product has. Weights of
// 148,800 elements are more than those whose rows threads share in pieces.
INSTANTIATE_TEST_SUITE_P(Blocks, CpuLinear,
                         testing::Combine(testing::Values(Types{DType::f32, DType::f32},
                                                          Types{DType::bf16, DType::bf16},
                                                          Types{DType::bf16, DType::f32}),
                                          testing::Values(Shape{1937, 10, 1090}, Shape{70, 3100, 48},
                                                          Shape{70, 48, 3100}, Shape{3083, 12, 20})));
// The sums of weights' gradients are cut in halves, and those of the first shape in pieces as well.
INSTANTIATE_TEST_SUITE_P(Halves, CpuLinear,
                         testing::Combine(testing::Values(Types{DType::f32, DType::f32},
                                                          Types{DType::bf16, DType::f32}),
                                          testing::Values(Shape{3500, 15, 23}, Shape{129, 1, 8200},
                                                          Shape{129, 8200, 1})));

}  // namespace
}  // namespace shoal::test
