// Element-wise operations, reductions, initial values and AdamW of the cpu backend against the oracle.
#include <cmath>
#include <numbers>
#include <vector>

#include "core/hash.h"
#include "ops/conformance.h"

namespace shoal::test {
namespace {

class CpuElementwise : public Conformance<std::tuple<DType, std::int64_t>> {
 protected:
  DType type_ = std::get<0>(GetParam());
  std::int64_t n_ = std::get<1>(GetParam());
};

TEST_P(CpuElementwise, ZeroAndFill) {
  const Buffer x = cpu().full({n_}, normal_values(n_, 1));
  cpu().backend.fill(x, 0.25f);
  EXPECT_TRUE((x.values() == 0.25).min());
  cpu().backend.zero(x);
  EXPECT_TRUE((x.values() == 0.0).min());
}

TEST_P(CpuElementwise, ZeroEachLeavesTheRest) {
  const std::int64_t pieces = 19;
  const Values x = normal_values(pieces * n_, 1, type_);
  const Buffer all = cpu(type_).compute({pieces, n_}, x);
  std::vector<Tensor> odd;
  Values expected = x;
  for (std::int64_t i = 1; i < pieces; i += 2) {
    odd.push_back(static_cast<const Tensor&>(all).row_range(i, 1));
    expected[std::slice(static_cast<std::size_t>(i * n_), static_cast<std::size_t>(n_), 1)] = 0;
  }
  cpu(type_).backend.zero_each(odd);
  EXPECT_TRUE((all.values() == expected).min());
}

TEST_P(CpuElementwise, ConvertRoundsToNearest) {
  const Values x = normal_values(n_, 1);
  const Buffer from = cpu().full({n_}, x), to = cpu(type_).compute({n_}), back = cpu().full({n_});
  cpu().backend.convert(to, from);
  EXPECT_TRUE((to.values() == rounded(x, type_)).min());
  cpu().backend.convert(back, to);
  EXPECT_TRUE((back.values() == rounded(x, type_)).min());
}

TEST_P(CpuElementwise, Add) {
  const Values out = normal_values(n_, 1), x = normal_values(n_, 2, type_), expected = out + x;
  const Buffer sums = cpu().full({n_}, out);
  cpu().backend.add(sums, cpu(type_).compute({n_}, x));
  expect_within(sums.values(), expected, storage(expected, DType::f32));
  const Values stored = rounded(out, type_), both = stored + x;
  const Buffer narrow = cpu(type_).compute({n_}, stored);
  cpu().backend.add(narrow, cpu(type_).compute({n_}, x));
  expect_within(narrow.values(), both, storage(both, type_));
}

TEST_P(CpuElementwise, Scale) {
  const Values x = normal_values(n_, 1), expected = x * 0.375;
  const Buffer from = cpu().full({n_}, x), to = cpu().full({n_});
  cpu().backend.scale(to, from, 0.375f);
  expect_within(to.values(), expected, storage(expected, DType::f32));
  cpu().backend.scale(from, from, 0.375f);
  EXPECT_EQ(from.bytes(), to.bytes());
}

TEST_P(CpuElementwise, SumsAreInDouble) {
  const Values x = normal_values(n_, 1), start = {0.5};
  const Buffer total{cpu().backend, DType::f64, {1}, start}, squares{cpu().backend, DType::f64, {1}, start};
  cpu().backend.sum(total, cpu().full({n_}, x));
  cpu().backend.sum_squares(squares, cpu().full({n_}, x));
  const Values magnitude = std::abs(x), square = x * x;
  // Twice, since the expected value rounds as well.
  const double slack = 2 * gamma(n_ + 1, DType::f64);
  EXPECT_NEAR(total.values()[0], 0.5 + x.sum(), slack * (0.5 + magnitude.sum()));
  EXPECT_NEAR(squares.values()[0], 0.5 + square.sum(), slack * (0.5 + square.sum()));
}

// The sum of a piece depends neither on its position nor on the number of other pieces.
TEST_P(CpuElementwise, SquaresOfPieces) {
  const std::int64_t pieces = 11;
  const Values x = normal_values(pieces * n_, 1), start = normal_values(pieces, 2);
  const auto together = [&](const Side& side) {
    const Buffer totals{side.backend, DType::f64, {pieces}, start};
    side.backend.sum_squares(totals, side.full({pieces * n_}, x));
    return totals.values();
  };
  const Values square = x * x, sums = together(cpu());
  for (std::size_t i = 0; i < static_cast<std::size_t>(pieces); ++i) {
    const std::slice piece(i * static_cast<std::size_t>(n_), static_cast<std::size_t>(n_), 1);
    const Buffer alone{cpu().backend, DType::f64, {1}, Values{start[i]}};
    cpu().backend.sum_squares(alone, cpu().full({n_}, x[piece]));
    EXPECT_EQ(sums[i], alone.values()[0]) << "piece " << i;
    const double expected = start[i] + Values(square[piece]).sum();
    // Twice, since the expected value rounds as well.
    EXPECT_NEAR(sums[i], expected,
                2 * gamma(n_ + 1, DType::f64) * (std::abs(start[i]) + expected - start[i]));
    EXPECT_NEAR(together(oracle())[i], expected,
                2 * gamma(n_ + 1, DType::f64) * (std::abs(start[i]) + expected - start[i]));
  }
}

// x/2 (1 + tanh z): an error of tanh enters with |x|/2, and that of its argument with |x|/2 times |z| sech^2
// z < 1/2; with erf likewise. Together less than |x| times the error of a function and four roundings.
TEST_P(CpuElementwise, GeluForward) {
  for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
    const Values x = normal_values(n_, 1, type_, 0, 3);
    const auto run = [&](const Side& side) {
      const Buffer y = side.compute({n_});
      side.backend.gelu_forward(y, side.compute({n_}, x), kind);
      return y.values();
    };
    const Values expected = run(oracle());
    expect_within(run(cpu(type_)), expected,
                  (kFunctionError + gamma(4)) * std::abs(x) + storage(expected, type_));
  }
}

// With t = tanh z the slope is (1 + t) / 2 + x/2 (1 - t^2) z', where z' = 0.8 (1 + 0.134 x^2): an error of t
// enters with 1/2 + |x| z', since |t| <= 1. With erf it is Phi(x) + x phi(x), where an error of a function
// enters with 1/2 and |x| phi(x) < 1/4, less than that. Twice the error of a function leaves its size again
// for arguments and products.
TEST_P(CpuElementwise, GeluBackwardInPlaceAsWell) {
  for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
    const Values x = normal_values(n_, 1, type_, 0, 3), dy = normal_values(n_, 2, type_);
    const auto run = [&](const Side& side, bool in_place) {
      const Buffer gradient = side.compute({n_}, dy), separate = side.compute({n_});
      const Tensor dx = in_place ? gradient : separate;
      side.backend.gelu_backward(dx, gradient, side.compute({n_}, x), kind);
      return (in_place ? gradient : separate).values();
    };
    const Values expected = run(oracle(), false);
    const Values slope_size = std::abs(x) * (0.8 * (1.0 + 0.134 * x * x));
    const Values bound = (2 * kFunctionError) * std::abs(dy) * (1.0 + slope_size) + storage(expected, type_);
    expect_within(run(cpu(type_), false), expected, bound);
    expect_within(run(cpu(type_), true), expected, bound);
  }
}

// m = b1 m + (1 - b1) g s and v likewise: four and five roundings. The step lr / c1 * m / (sqrt(v / c2) +
// eps) carries the error of m, half that of v (a square root halves relative errors), and eight roundings of
// its own with two functions at most; then decay and subtraction round three times.
TEST_P(CpuElementwise, AdamW) {
  const Values w0 = normal_values(n_, 1), m0 = normal_values(n_, 2) * 0.1, g = normal_values(n_, 4);
  const Values deviation = normal_values(n_, 3), v0 = deviation * deviation * 0.01;
  const float grad_scale = 0.75f;
  const AdamWScalars step{.lr = 0.01f, .correction1 = 0.271f, .correction2 = 0.142625f, .commit = 1};
  for (const bool scaled : {true, false}) {
    const auto run = [&](const Side& side, bool with_copy) {
      const Buffer w = side.full({n_}, rounded(w0, DType::f32)), m = side.full({n_}, rounded(m0, DType::f32)),
                   v = side.full({n_}, rounded(v0, DType::f32)), copy{side.backend, DType::bf16, {n_}},
                   factor{side.backend, DType::f32, {1}, Values{grad_scale}};
      const Scalar<AdamWScalars> scalars(side.backend, step);
      const AdamWSettings settings{
          .scalars = scalars.get(),
          .grad_scale = scaled ? static_cast<const Tensor&>(factor).as<const float>() : nullptr,
          .weight_decay = 0.1f};
      side.backend.adamw(
          {.weights = w, .compute = with_copy ? copy : Tensor{}, .m = m, .v = v, .grads = side.full({n_}, g)},
          settings);
      return std::array{w.values(), m.values(), v.values(), copy.values()};
    };
    const bool with_copy = type_ == DType::bf16;
    const auto [w, m, v, copy] = run(cpu(), with_copy);
    const auto [expected_w, expected_m, expected_v, unused] = run(oracle(), false);
    const Values m_error = gamma(4) * std::abs(m0) + gamma(4) * 0.1 * std::abs(g);
    const Values update =
        step.lr / step.correction1 / (std::sqrt(expected_v / static_cast<double>(step.correction2)) + 1e-8);
    expect_within(m, expected_m, m_error + storage(expected_m, DType::f32));
    expect_within(v, expected_v, gamma(5) * expected_v + storage(expected_v, DType::f32));
    expect_within(w, expected_w,
                  update * (m_error + (gamma(5) / 2 + gamma(8) + 2 * kFunctionError) * std::abs(expected_m)) +
                      gamma(3) * std::abs(w0) + storage(expected_w, DType::f32));
    EXPECT_TRUE((copy == (with_copy ? rounded(w, DType::bf16) : Values(0.0, w.size()))).min());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CpuElementwise,
                         testing::Combine(kComputeTypes,
                                          testing::Values(1, 3, 17, 48, 100, 1003, 1024, 5001, 40000)));

// The squares of most of them are no numbers of float32.
class CpuGelu : public Conformance<int> {};

TEST_F(CpuGelu, SlopesOfHugeInputsAreOneOrZero) {
  const Values x = {1e18, 2e19, 1e25, 3e38, -1e18, -2e19, -1e25, -3e38};
  const auto n = static_cast<std::int64_t>(x.size());
  for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const Side side = cpu(type);
      const Buffer slope = side.compute({n}), y = side.compute({n}), input = side.compute({n}, x);
      side.backend.gelu_backward(slope, side.compute({n}, Values(1.0, x.size())), input, kind);
      side.backend.gelu_forward(y, input, kind);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(slope.values()[i], x[i] > 0 ? 1 : 0) << x[i];
        EXPECT_EQ(y.values()[i], x[i] > 0 ? input.values()[i] : 0) << x[i];
      }
    }
  }
}

class CpuClip : public Conformance<int> {
 protected:
  static double scale_of(const Side& side, double squares, double max_norm, const Values& losses = {}) {
    const Buffer in{side.backend, DType::f64, {1}, Values{squares}}, out{side.backend, DType::f32, {1}},
        with{side.backend, DType::f64, {static_cast<std::int64_t>(losses.size())}, losses};
    side.backend.clip_scale(out, in, max_norm, losses.size() > 0 ? with : Tensor{});
    return out.values()[0];
  }
  double scale(double squares, double max_norm, const Values& losses = {}) const {
    return scale_of(cpu(), squares, max_norm, losses);
  }
  static constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                          kNan = std::numeric_limits<double>::quiet_NaN();
};

TEST_F(CpuClip, ScalesNormsAboveTheMaximumOnly) {
  EXPECT_FLOAT_EQ(static_cast<float>(scale(16, 1)), 0.25f);
  EXPECT_EQ(scale(0.25, 1), 1);
  EXPECT_EQ(scale(0, 1), 1);
  EXPECT_EQ(scale(1e6, 0), 1) << "0 means no clipping";
  for (const Side& side : {cpu(), oracle()})
    EXPECT_NEAR(scale_of(side, 1e-12, 1e-6), 0.5, 1e-7) << "1e-6 is added to the norm, as by PyTorch";
}

TEST_F(CpuClip, WhatIsNotFiniteGivesNan) {
  for (const double max_norm : {0.0, 1.0}) {
    EXPECT_TRUE(std::isnan(scale(kInfinity, max_norm)));
    EXPECT_TRUE(std::isnan(scale(kNan, max_norm)));
    EXPECT_TRUE(std::isnan(scale(0.25, max_norm, {1, kInfinity})));
    EXPECT_TRUE(std::isnan(scale(0.25, max_norm, {kNan, 1})));
    EXPECT_EQ(scale(0.25, max_norm, {1, 1e300}), 1);
  }
}

TEST_F(CpuClip, WithNanAnUpdateChangesNothing) {
  for (const bool with_mean : {false, true}) {
    const std::int64_t n = 1003;
    const Side side = cpu();
    const Values old = normal_values(n, 1);
    const Buffer w = side.full({n}, old), m = side.full({n}, old), v = side.full({n}, old),
                 mean = side.full({n}, old), copy{side.backend, DType::bf16, {n}},
                 nan = side.full({1}, Values{kNan});
    const Scalar<AdamWScalars> scalars(side.backend, {0.1f, 1, 1, 1});
    const AdamWSettings settings{.scalars = scalars.get(),
                                 .grad_scale = static_cast<const Tensor&>(nan).as<const float>(),
                                 .weight_decay = 0.1f};
    side.backend.adamw({.weights = w,
                        .compute = copy,
                        .m = m,
                        .v = v,
                        .mean = with_mean ? mean : Tensor{},
                        .grads = side.full({n}, normal_values(n, 2))},
                       settings);
    for (const auto* x : {&w, &m, &v, &mean}) EXPECT_TRUE((x->values() == old).min());
    EXPECT_TRUE((copy.values() == rounded(old, DType::bf16)).min()) << "the copy is made all the same";
  }
}

class CpuSumRows : public Conformance<int> {
 protected:
  // The sum of the first n numbers of each row.
  double sum(const Values& numbers, std::int64_t rows, std::int64_t n) const {
    const auto count = static_cast<std::int64_t>(numbers.size());
    const Buffer x{cpu().backend, DType::f64, {rows, count / rows}, numbers},
        total{cpu().backend, DType::f64, {1}, Values{0.5}};
    cpu().backend.sum_rows(total, x, n);
    return total.values()[0];
  }
};

// The numbers have very different sizes, so that another order of the sum gives another result.
TEST_F(CpuSumRows, TheOrderKnowsNeitherRowsNorZerosBehind) {
  for (const std::int64_t n : {1, 7, 1024, 5000}) {
    Values line = normal_values(n, 1);
    for (std::size_t i = 0; i < line.size(); ++i) line[i] *= std::pow(10.0, static_cast<double>(i % 17));
    const double whole = sum(line, 1, n);
    EXPECT_NEAR(whole, 0.5 + line.sum(), 1e-12 * std::abs(line).sum());
    Values longer(0.0, line.size() + 600);
    longer[std::slice(0, line.size(), 1)] = line;
    EXPECT_EQ(sum(longer, 1, n + 600), whole);
    // The same line as rows of four, each followed by two unrelated numbers, with zeros at the end.
    const std::int64_t rows = (n + 3) / 4;
    Values cut(1e30, static_cast<std::size_t>(rows * 6));
    for (std::int64_t i = 0; i < rows * 4; ++i) {
      cut[static_cast<std::size_t>(i / 4 * 6 + i % 4)] = i < n ? line[static_cast<std::size_t>(i)] : 0;
    }
    EXPECT_EQ(sum(cut, rows, 4), whole);
  }
}

class CpuFillNormal : public Conformance<int> {
 protected:
  Values filled(const Side& side, std::int64_t first, std::int64_t n) const {
    const Buffer out = side.full({n});
    side.backend.fill_normal(out, 42, fnv1a("block.3.mlp.weight"), first, 0.02);
    return out.values();
  }
};

// ops/kernels.h defines the values; computed in double, they are rounded once.
TEST_F(CpuFillNormal, EqualsTheOracle) {
  const std::int64_t first = (std::int64_t{1} << 32) - 100;  // across the border of 32 bits
  const Values expected = filled(oracle(), first, 5000);
  expect_within(filled(cpu(), first, 5000), expected, storage(expected, DType::f32));
}

TEST_F(CpuFillNormal, ShardsAreSlicesOfTheWhole) {
  const Values whole = filled(cpu(), 0, 3001), shard = filled(cpu(), 1007, 1500);
  EXPECT_TRUE((shard == Values(whole[std::slice(1007, 1500, 1)])).min());
}

TEST_F(CpuFillNormal, HasTheMomentsOfANormal) {
  const std::int64_t n = 100000;
  const Values x = filled(cpu(), 0, n) / 0.02;
  const Values squares = x * x;
  // Five standard deviations of the estimates: 1 / sqrt(n), and sqrt(2 / n).
  EXPECT_NEAR(x.sum() / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares.sum() / n, 1, 5 * std::sqrt(2.0 / n));
}

}  // namespace
}  // namespace shoal::test
