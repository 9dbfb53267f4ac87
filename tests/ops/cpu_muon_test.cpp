// Muon's parts of the cpu backend beside its products, against the oracle.
#include <cmath>

#include "ops/conformance.h"

namespace shoal::test {
namespace {

class CpuMuon : public Conformance<std::tuple<DType, std::int64_t>> {
 protected:
  DType type_ = std::get<0>(GetParam());
  std::int64_t n_ = std::get<1>(GetParam());
  Values some(std::uint32_t which, DType type = DType::f32) const { return normal_values(n_, which, type); }
};

// g = s * gradient rounds once, and a mix of two terms three times; Nesterov's is a mix of a mix.
TEST_P(CpuMuon, Direction) {
  constexpr float kBeta = 0.95f;
  const Values gradient = some(1), old = some(2) * 0.1;
  for (const bool nesterov : {true, false}) {
    const auto run = [&](const Side& side) {
      const Buffer direction = side.full({n_}, gradient),
                   momentum = side.full({n_}, rounded(old, DType::f32)),
                   scale{side.backend, DType::f32, {1}, Values{0.75}};
      side.backend.muon_direction(direction, momentum,
                                  {.grad_scale = static_cast<const Tensor&>(scale).as<const float>(),
                                   .momentum = kBeta,
                                   .nesterov = nesterov});
      return std::array{direction.values(), momentum.values()};
    };
    const auto [direction, momentum] = run(cpu());
    const auto [expected, expected_momentum] = run(oracle());
    const Values magnitude = std::abs(old) + std::abs(gradient);
    expect_within(momentum, expected_momentum, gamma(5) * magnitude + kSmallest);
    expect_within(direction, expected, gamma(9) * magnitude + kSmallest);
  }
}

TEST_P(CpuMuon, Update) {
  const Values old = some(1), direction = some(2);
  const auto run = [&](const Side& side) {
    const Buffer w = side.full({n_}, old), copy{side.backend, DType::bf16, {n_}},
                 lr{side.backend, DType::f32, {1}, Values{0.02f}};
    side.backend.muon_update({.weights = w,
                              .compute = type_ == DType::bf16 ? copy : Tensor{},
                              .direction = side.full({n_}, direction)},
                             {.lr = static_cast<const Tensor&>(lr).as<const float>(), .weight_decay = 0.1f});
    return std::array{w.values(), copy.values()};
  };
  const auto [w, copy] = run(cpu());
  const auto [expected, unused] = run(oracle());
  expect_within(w, expected, gamma(4) * (std::abs(old) + 0.02 * std::abs(direction)) + kSmallest);
  EXPECT_TRUE((copy == (type_ == DType::bf16 ? rounded(w, DType::bf16) : Values(0.0, w.size()))).min());
}

TEST_P(CpuMuon, NothingChangesWithoutAScale) {
  const Values old = some(1);
  const auto side = cpu();
  const Buffer w = side.full({n_}, old), m = side.full({n_}, old), d = side.full({n_}, old),
               copy{side.backend, DType::bf16, {n_}}, lr{side.backend, DType::f32, {1}, Values{0.02f}},
               nan = side.full({1}, Values{std::numeric_limits<double>::quiet_NaN()});
  const MuonSettings settings{.lr = static_cast<const Tensor&>(lr).as<const float>(),
                              .grad_scale = static_cast<const Tensor&>(nan).as<const float>(),
                              .weight_decay = 0.1f};
  side.backend.muon_direction(d, m, settings);
  side.backend.muon_update({.weights = w, .compute = copy, .direction = d}, settings);
  for (const auto* x : {&w, &m}) EXPECT_TRUE((x->values() == old).min());
  EXPECT_TRUE((copy.values() == rounded(old, DType::bf16)).min()) << "the copy is made all the same";
}

// A division, or a product with a rounded reciprocal; a norm near zero is not divided by.
TEST_P(CpuMuon, Normalize) {
  for (const double squares : {2.5, 0.0}) {
    const Values x = some(1) * (squares > 0 ? 1 : 1e-9);
    const auto run = [&](const Side& side) {
      const Buffer out = side.compute({n_}), sum{side.backend, DType::f64, {1}, Values{squares}};
      side.backend.normalize(out, side.full({n_}, rounded(x, DType::f32)), sum);
      return out.values();
    };
    const Values expected = run(oracle());
    expect_within(run(cpu(type_)), expected, gamma(2) * std::abs(expected) + storage(expected, type_));
  }
}

TEST_P(CpuMuon, ScaleAndAdd) {
  const Values x = some(1, type_), y = some(2);
  const auto run = [&](const Side& side) {
    const Buffer out = side.compute({n_}, x);
    side.backend.scale_and_add(out, 3.25f, side.full({n_}, y), 0.3f);
    return out.values();
  };
  const Values expected = run(oracle());
  expect_within(run(cpu(type_)), expected,
                gamma(2) * (3.25 * std::abs(x) + 0.3 * std::abs(y)) + storage(expected, type_));
}

INSTANTIATE_TEST_SUITE_P(Sizes, CpuMuon,
                         testing::Combine(kComputeTypes, testing::Values(1, 17, 1003, 70000)));

class CpuMatrixParts : public Conformance<std::tuple<DType, Shape>> {
 protected:
  DType type_ = std::get<0>(GetParam());
  Shape shape_ = std::get<1>(GetParam());
};

TEST_P(CpuMatrixParts, Transpose) {
  const std::int64_t rows = shape_[0], columns = shape_[1];
  const Values x = normal_values(rows * columns, 1);
  const auto side = cpu(type_);
  const Buffer out = side.compute({columns, rows}), back = side.full({rows, columns});
  side.backend.transpose(out, side.full(shape_, x));
  side.backend.transpose(back, out);
  Values expected(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j)
      expected[static_cast<std::size_t>(j * rows + i)] = x[static_cast<std::size_t>(i * columns + j)];
  }
  EXPECT_TRUE((out.values() == rounded(expected, type_)).min());
  EXPECT_TRUE((back.values() == rounded(x, type_)).min());
}

// Rows from the middle of a matrix, with and without a base. What is not of these rows and columns stays.
TEST_P(CpuMatrixParts, SymmetricRows) {
  const std::int64_t first = shape_[0] / 3, count = shape_[1] / 2 + 1, size = first + count + 5;
  const Values rows = normal_values(count * (first + count), 1), old = normal_values(size * size, 2, type_);
  Values base = normal_values(size * size, 3, type_);
  for (const bool with_base : {true, false}) {
    const auto run = [&](const Side& side) {
      const Buffer out = side.compute({size, size}, old), under = side.compute({size, size}, base);
      side.backend.set_symmetric_rows({.out = out,
                                       .first = first,
                                       .rows = side.full({count, first + count}, rows),
                                       .factor = 2.5f,
                                       .base = with_base ? under : Tensor{},
                                       .base_factor = -1.5f});
      return out.values();
    };
    const Values expected = run(oracle());
    const double magnitude = 2.5 * std::abs(rows).max() + 1.5 * std::abs(base).max();
    expect_within(run(cpu(type_)), expected, gamma(2) * magnitude + storage(expected, type_));
    for (std::int64_t i = 0; i < size; ++i) {
      for (std::int64_t j = 0; j < size; ++j) {
        const bool set = std::max(i, j) >= first && std::max(i, j) < first + count;
        const auto at = static_cast<std::size_t>(i * size + j);
        if (set) {
          EXPECT_EQ(expected[at], expected[static_cast<std::size_t>(j * size + i)]);
        } else {
          EXPECT_EQ(expected[at], old[at]);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuMatrixParts,
                         testing::Combine(kComputeTypes,
                                          testing::Values(Shape{1, 1}, Shape{3, 70}, Shape{70, 3},
                                                          Shape{64, 64}, Shape{129, 200})));

}  // namespace
}  // namespace shoal::test
