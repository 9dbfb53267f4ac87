// Muon on the backends against its equations in double.
#include <cmath>
#include <string>

#include "ops/conformance.h"
#include "ops/make_backend.h"
#include "optim/optimizer.h"

namespace shoal::test {
namespace {

// A matrix in double, row by row.
struct Matrix {
  std::int64_t rows, columns;
  Values values;

  double& at(std::int64_t i, std::int64_t j) { return values[static_cast<std::size_t>(i * columns + j)]; }
  double at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * columns + j)];
  }
  Matrix transposed() const {
    Matrix to{columns, rows, values};
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) to.at(j, i) = at(i, j);
    return to;
  }
};

Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, Values(0.0, static_cast<std::size_t>(a.rows * b.columns))};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t k = 0; k < a.columns; ++k)
      for (std::int64_t j = 0; j < b.columns; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
  return c;
}

double norm_of(const Values& values) { return std::sqrt((values * values).sum()); }

// The iteration as it is published, without a transposition: X X^T X is the same on either side.
Matrix orthogonal(Matrix x, int steps) {
  x.values /= norm_of(x.values);
  for (int step = 0; step < steps; ++step) {
    const auto gram = x * x.transposed(), cubic = gram * x, quintic = gram * cubic;
    x.values = 3.4445f * x.values - 4.7750f * cubic.values + 2.0315f * quintic.values;
  }
  return x;
}

// The memory of the iteration, for one matrix.
struct Workspace {
  Workspace(const Side& side, std::int64_t elements, std::int64_t size)
      : matrix(side.compute({elements})),
        gram(side.compute({size * size})),
        square(side.compute({size * size})),
        rows(side.full({MatrixWorkspace::rows_at_once(size) * size})),
        squares{side.backend, DType::f64, {1}} {}
  MatrixWorkspace tensors() const { return {matrix, gram, square, rows, squares}; }
  Buffer matrix, gram, square, rows, squares;
};

Values orthogonalized(const Side& side, const Matrix& x, int steps) {
  const bool by_columns = x.rows > x.columns;
  const Buffer direction = side.full({x.rows, x.columns}, x.values);
  const Workspace workspace(side, x.rows * x.columns, std::min(x.rows, x.columns));
  orthogonalize(
      side.backend,
      {.direction = direction, .shape = {x.rows, x.columns}, .by_columns = by_columns, .add_over_ranks = {}},
      workspace.tensors(), steps);
  return direction.values();
}

class NewtonSchulz : public Conformance<std::tuple<DType, Shape>> {
 protected:
  Matrix matrix() const {
    const auto& shape = std::get<1>(GetParam());
    return {shape[0], shape[1], normal_values(shape.count(), 5)};
  }
};

TEST_P(NewtonSchulz, OfTheOracleIsThatOfTheEquations) {
  const auto x = matrix();
  const Values expected = orthogonal(x, 5).values;
  EXPECT_LE(norm_of(orthogonalized(oracle(), x, 5) - expected), 1e-11 * norm_of(expected));
}

// A step computes a X + (b G + c G^2) X in three products and three sums. With singular values up to s = 1.2
// they have norms of at most (a + |b| s^2 + c s^4) = 15 of X's, and each of some five roundings in a row adds
// an independent relative error of 0.7 u in the mean square. A step multiplies the error of the one before by
// at most |a + 3 b s^2 + 5 c s^4| = 4: 4^4 + ... + 1 = 341.
TEST_P(NewtonSchulz, IsWithinItsRoundings) {
  const DType type = std::get<0>(GetParam());
  const auto x = matrix();
  const Values expected = orthogonal(x, 5).values;
  const double error = 341 * 15 * std::sqrt(5) * 0.7 * unit_roundoff(type);
  if (type == DType::f32) {
    EXPECT_LE(norm_of(orthogonalized(cpu(), x, 5) - expected), error * norm_of(expected));
  } else {
    // In bfloat16 that bound is too wide to say anything. One step carries no error of a step before.
    const Values one = orthogonal(x, 1).values;
    EXPECT_LE(norm_of(orthogonalized(cpu(type), x, 1) - one),
              15 * std::sqrt(5) * 0.7 * unit_roundoff(type) * norm_of(one));
  }
}

// All singular values end near 1: then the sum of their squares is near their number.
TEST_P(NewtonSchulz, MakesRowsOrColumnsNearlyOrthonormal) {
  const auto x = matrix();
  const Values y = orthogonalized(cpu(std::get<0>(GetParam())), x, 5);
  const auto size = static_cast<double>(std::min(x.rows, x.columns));
  EXPECT_GT((y * y).sum(), 0.5 * size);
  EXPECT_LT((y * y).sum(), 1.35 * size);
}

INSTANTIATE_TEST_SUITE_P(Shapes, NewtonSchulz,
                         testing::Combine(kComputeTypes,
                                          testing::Values(Shape{12, 12}, Shape{36, 12}, Shape{12, 48},
                                                          Shape{90, 70}, Shape{70, 150})));

// Three updates of a shard of two matrices, each transformed as a whole, and AdamW's of what is no matrix.
class MuonSteps : public testing::TestWithParam<std::tuple<MuonScale, bool>> {};

TEST_P(MuonSteps, FollowTheEquations) {
  const auto [scale, nesterov] = GetParam();
  constexpr std::int64_t kRows = 20, kColumns = 8;
  constexpr double kPeak = 0x1p-7, kRate = 3, kBeta = 0.9375, kWeightDecay = 0.125;
  const MuonConfig config{.adamw = {.weight_decay = kWeightDecay},
                          .rate = kRate,
                          .momentum = kBeta,
                          .nesterov = nesterov,
                          .scale = scale};
  const auto optimizer = make_optimizer(config);
  const auto backend = make_backend(BackendKind::reference);
  const Side side{*backend, DType::f64, DType::f64};
  Matrix w{kRows, kColumns, normal_values(kRows * kColumns, 1)}, m{kRows, kColumns, 0.0 * w.values};
  const Buffer weights = side.full({kRows * kColumns}, w.values), momentum = side.full({kRows * kColumns}),
               scalars{*backend, DType::f32, {optimizer->scalar_count()}};
  const Workspace workspace(side, kRows * kColumns, kColumns);
  EXPECT_EQ(optimizer->matrix_states(), 1u);
  for (int step = 1; step <= 3; ++step) {
    const Values g = normal_values(kRows * kColumns, 10 + static_cast<std::uint32_t>(step));
    const Buffer gradient = side.full({kRows * kColumns}, g);
    const Tensor state[] = {momentum};
    const OptimizerShard shard{.weights = weights, .state = state, .gradient = gradient, .matrix = true};
    optimizer->begin_step(*backend, scalars, kPeak, step);
    optimizer->direct(*backend, shard);
    const Tensor& direction = gradient;
    optimizer->transform(*backend,
                         {.direction = direction.reshaped({kRows, kColumns}),
                          .shape = {kRows, kColumns},
                          .by_columns = true,
                          .add_over_ranks = {}},
                         workspace.tensors());
    optimizer->update(*backend, shard);

    m.values = kBeta * m.values + (1 - kBeta) * g;
    const Matrix mixed{kRows, kColumns, nesterov ? Values(kBeta * m.values + (1 - kBeta) * g) : m.values};
    const double factor = scale == MuonScale::original ? std::sqrt(2.5) : 0.2 * std::sqrt(20);
    w.values = w.values * (1 - kPeak * kRate * kWeightDecay) -
               kPeak * kRate * static_cast<float>(factor) * orthogonal(mixed, 5).values;
    EXPECT_LE(norm_of(weights.values() - w.values), 1e-10 * norm_of(w.values)) << step;
    EXPECT_LE(norm_of(momentum.values() - m.values), 1e-14 * norm_of(m.values)) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(, MuonSteps,
                         testing::Combine(testing::Values(MuonScale::original, MuonScale::match_rms_adamw),
                                          testing::Bool()));

TEST(Muon, TreatsOtherParametersAsAdamWDoes) {
  const AdamWConfig adamw{.beta1 = 0.8, .weight_decay = 0.2};
  const auto after = [&](const OptimizerOptions& options) {
    const auto optimizer = make_optimizer(options);
    const auto backend = make_cpu_backend(1);
    const Side side{*backend, DType::f32};
    constexpr std::int64_t kCount = 100;
    const Buffer w = side.full({kCount}, normal_values(kCount, 1)), m = side.full({kCount}),
                 v = side.full({kCount}), scalars{*backend, DType::f32, {optimizer->scalar_count()}};
    const Tensor state[] = {m, v};
    for (int step = 1; step <= 3; ++step) {
      optimizer->begin_step(*backend, scalars, 1e-2, step);
      optimizer->update(
          *backend,
          {.weights = w, .state = state, .gradient = side.full({kCount}, normal_values(kCount, 2))});
    }
    return std::array{w.bytes(), m.bytes(), v.bytes()};
  };
  EXPECT_TRUE(after(adamw) == after(MuonConfig{.adamw = adamw, .rate = 5}));
}

}  // namespace
}  // namespace shoal::test
