// Weights in 8 bits, of the cpu backend and the oracle.
#include "ops/int8.h"

#include <algorithm>
#include <cmath>

#include "ops/conformance.h"
#include "ops/cpu/cpu.h"

namespace shoal::test {
namespace {

constexpr int kMostInput = (1 << 14) - 1;  // the levels of x (ops/cpu/few_rows.h)

// A matrix of a backend in 8 bits.
struct Packed {
  Packed(const Side& side, std::int64_t rows, std::int64_t columns, const Values& values)
      : buffer(side.backend, DType::i8, Int8Rows::shape(rows, columns)) {
    side.backend.to_int8(buffer, side.compute({rows, columns}, values));
  }
  operator const Tensor&() const { return buffer; }

  Values levels() const {
    const Int8Rows at(buffer);
    Values values(static_cast<std::size_t>(at.rows() * at.columns()));
    for (std::int64_t n = 0; n < at.rows(); ++n)
      std::copy_n(at.row(n), at.columns(), std::begin(values) + n * at.columns());
    return values;
  }
  double step(std::int64_t row) const { return Int8Rows(buffer).step(row); }
  Buffer buffer;
};

// The levels of a row of x, and their step.
std::pair<std::vector<std::int16_t>, float> levels_of(const Values& row) {
  const std::vector<float> floats(std::begin(row), std::end(row));
  std::vector<std::int16_t> levels(floats.size());
  const float step = to_levels(levels.data(), floats.data(), std::ssize(floats), kMostInput);
  return {levels, step};
}

class Int8 : public Conformance<std::tuple<DType, Shape>> {  // the shape is R, K, N
 protected:
  DType type_ = std::get<0>(GetParam());
  std::int64_t R_ = std::get<1>(GetParam())[0], K_ = std::get<1>(GetParam())[1],
               N_ = std::get<1>(GetParam())[2];
  Values x_ = normal_values(R_ * K_, 1, type_), w_ = normal_values(N_ * K_, 2, type_),
         bias_ = normal_values(N_, 3, type_);
};

class Int8FewRows : public Int8 {};

TEST_P(Int8, ARowHasTheNearestOfItsLevels) {
  const Packed packed(cpu(type_), N_, K_, w_);
  const Values levels = packed.levels();
  for (std::int64_t n = 0; n < N_; ++n) {
    const Values row = w_[std::slice(static_cast<std::size_t>(n * K_), static_cast<std::size_t>(K_), 1)];
    const double step = packed.step(n), largest = std::abs(row).max();
    EXPECT_NEAR(step, largest / 127, largest / 127 * kUnit);
    for (std::size_t k = 0; k < row.size(); ++k) {
      const double level = levels[static_cast<std::size_t>(n * K_) + k];
      ASSERT_LE(std::abs(level * step - row[k]), step * (0.5 + 128 * 2 * kUnit)) << n << ", " << k;
    }
  }
  EXPECT_EQ(packed.buffer.bytes(), Packed({*make_reference_backend(), type_}, N_, K_, w_).buffer.bytes());
}

TEST_P(Int8, TakesThePlaceOfItsMatrix) {
  const Side side = cpu(type_);
  const Buffer w = side.compute({N_, K_}, w_);
  const Tensor place{static_cast<const Tensor&>(w).data, DType::i8, Int8Rows::shape(N_, K_)};
  side.backend.to_int8(place, w);
  auto bytes = w.bytes();
  bytes.resize(place.bytes());
  EXPECT_EQ(bytes, Packed(side, N_, K_, w_).buffer.bytes());
}

// In products of few rows a number of x is off by at most half a step; in products of many rows each weight
// is rounded to the type of x.
TEST_P(Int8, ProductsAgreeWithTheOracle) {
  const auto run = [&](const Side& side, DType out, const Tensor& w) {
    const Buffer y{side.backend, out, {R_, N_}};
    side.backend.linear_forward(y, side.compute({R_, K_}, x_), w, side.compute({N_}, bias_));
    return y.values();
  };
  const Packed weights(cpu(type_), N_, K_, w_), same(oracle(), N_, K_, w_);
  const Values expected = run(oracle(), DType::f64, same), levels = std::abs(weights.levels());
  Values bound(R_ * N_);
  for (std::int64_t r = 0; r < R_; ++r) {
    const Values x = x_[std::slice(static_cast<std::size_t>(r * K_), static_cast<std::size_t>(K_), 1)];
    for (std::int64_t n = 0; n < N_; ++n) {
      const Values w = levels[std::slice(static_cast<std::size_t>(n * K_), static_cast<std::size_t>(K_), 1)];
      const double step = weights.step(n), sum = step * w.sum(), products = step * (w * std::abs(x)).sum();
      const double rounding = R_ <= kFewRows
                                  ? sum * (0.5 + kMostInput * 2 * kUnit) * std::abs(x).max() / kMostInput
                                  : products * (gamma(K_ + 1) + unit_roundoff(type_));
      bound[static_cast<std::size_t>(r * N_ + n)] =
          rounding + gamma(4) * (products + std::abs(bias_[static_cast<std::size_t>(n)]));
    }
  }
  for (const DType out : {type_, DType::f32})
    expect_within(run(cpu(type_), out, weights), expected, bound + storage(std::abs(expected) + bound, out));
}

// Sums are whole numbers, the same in any order, at every level of instructions, beside any other rows.
TEST_P(Int8FewRows, HaveExactSums) {
  const Packed weights(cpu(type_), N_, K_, w_);
  const Buffer y{cpu(type_).backend, DType::f32, {R_, N_}};
  cpu(type_).backend.linear_forward(y, cpu(type_).compute({R_, K_}, x_), weights,
                                    cpu(type_).compute({N_}, bias_));
  const Values result = y.values(), ws = weights.levels();
  for (std::int64_t r = 0; r < R_; ++r) {
    const auto [xs, step] =
        levels_of(x_[std::slice(static_cast<std::size_t>(r * K_), static_cast<std::size_t>(K_), 1)]);
    for (std::int64_t n = 0; n < N_; ++n) {
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < K_; ++k) {
        sum += std::int64_t{xs[static_cast<std::size_t>(k)]} *
               static_cast<std::int64_t>(ws[static_cast<std::size_t>(n * K_ + k)]);
      }
      const float product = static_cast<float>(sum) * (static_cast<float>(weights.step(n)) * step),
                  bias = static_cast<float>(bias_[static_cast<std::size_t>(n)]);
      // The processor may add before it rounds the product.
      const auto here = static_cast<float>(result[static_cast<std::size_t>(r * N_ + n)]);
      ASSERT_TRUE(here == product + bias ||
                  here == std::fma(static_cast<float>(sum), static_cast<float>(weights.step(n)) * step, bias))
          << r << ", " << n;
    }
  }
}

// The last row is left out, as padding is.
TEST_P(Int8, WordsAreRead) {
  const std::int64_t classes = N_, channels = K_;
  const auto run = [&](const Side& side, DType out_type) {
    const Packed words(side, classes, channels, w_);
    const Buffer out{side.backend, out_type, {1, 3, channels}};
    side.backend.embedding_forward(out, side.ints({1, 3}, {1, 0, 100}),
                                   static_cast<const Tensor&>(words).row_range(0, classes - 1),
                                   side.compute({5, channels}, normal_values(5 * channels, 4, type_)), 0, {});
    return out.values();
  };
  const Values expected = run(oracle(), DType::f64);
  expect_within(run(cpu(type_), DType::f32), expected,
                gamma(2) * 2 * std::abs(expected).max() + storage(expected, DType::f32));
}

const auto kFew = testing::Values(Shape{1, 768, 96}, Shape{2, 35, 105}, Shape{5, 24, 72}, Shape{8, 9000, 16},
                                  Shape{1, 5, 3});
INSTANTIATE_TEST_SUITE_P(Few, Int8, testing::Combine(kComputeTypes, kFew));
INSTANTIATE_TEST_SUITE_P(Few, Int8FewRows, testing::Combine(kComputeTypes, kFew));
INSTANTIATE_TEST_SUITE_P(Many, Int8,
                         testing::Combine(kComputeTypes,
                                          testing::Values(Shape{9, 48, 40}, Shape{40, 130, 33})));

TEST(Int8Rows, OfZerosAndOfWhatIsNoNumber) {
  const auto backend = make_cpu_backend(2);
  const Side side{*backend, DType::f32};
  Values values(0.0, 3 * 8);
  values[8 + 3] = std::numeric_limits<double>::quiet_NaN();
  values[16 + 7] = std::numeric_limits<double>::infinity();
  const Packed packed(side, 3, 8, values);
  const Buffer y{*backend, DType::f32, {1, 3}};
  backend->linear_forward(y, side.compute({1, 8}, Values(1.0, 8)), packed, {});
  EXPECT_EQ(y.values()[0], 0);
  EXPECT_TRUE(std::isnan(y.values()[1]) && std::isnan(y.values()[2]));
  // A NaN in x is in its row's result alone.
  Values x(1.0, 2 * 8);
  x[4] = std::numeric_limits<double>::quiet_NaN();
  const Packed ones(side, 1, 8, Values(1.0, 8));
  const Buffer both{*backend, DType::f32, {2, 1}};
  backend->linear_forward(both, side.compute({2, 8}, x), ones, {});
  EXPECT_TRUE(std::isnan(both.values()[0]));
  EXPECT_NEAR(both.values()[1], 8, 8 * 8 * kUnit);
}

// The largest magnitudes there are, of one sign, over more terms than 32 bits have room for.
TEST(Int8Rows, SumsDoNotOverflow) {
  const auto backend = make_cpu_backend(1);
  const Side side{*backend, DType::f32};
  constexpr std::int64_t kTerms = 20000;
  const Packed packed(side, 1, kTerms, Values(-1.0, kTerms));
  const Buffer y{*backend, DType::f32, {1, 1}};
  backend->linear_forward(y, side.compute({1, kTerms}, Values(1.0, kTerms)), packed, {});
  EXPECT_NEAR(y.values()[0], -kTerms, 8 * kTerms * kUnit);
}

}  // namespace
}  // namespace shoal::test
