// Dropout: the same mask on every backend and for every way of cutting the global batch, and an unbiased
// mean.
#include "ops/dropout.h"

#include <gmock/gmock.h>

#include <cmath>

#include "ops/conformance.h"

namespace shoal::test {
namespace {

class DropoutMask : public Conformance<double> {  // the dropped share
 protected:
  Dropout dropout_ = [] {
    Dropout dropout = some_dropout(64);
    dropout.p = GetParam();
    return dropout;
  }();
  const Side sides_[2] = {cpu(), {oracle().backend, DType::f32}};

  // 1 where an element is kept.
  double kept(std::int64_t row, std::int64_t column, std::uint32_t site) const {
    return dropout_bits(philox_key(dropout_.seed, PhiloxStream::dropout), Side::kStep, site, row, column) >=
           dropout_.threshold();
  }
  Values residual(const Side& side, const Dropout& dropout, std::int64_t B, std::int64_t T,
                  std::int64_t C) const {
    const Buffer out = side.full({B, T, C});
    side.backend.residual_forward(out, side.full({B, T, C}), side.compute({B, T, C}, Values(1.0, B * T * C)),
                                  dropout.step ? dropout : side.at_step(dropout));
    return out.values();
  }
};

TEST_P(DropoutMask, EveryElementwiseOpDropsWhatThePageSays) {
  const std::int64_t B = 2, T = 33, C = 300;
  dropout_.window.first_position = 31;
  Values expected(B * T * C);
  for (std::int64_t row = 0, i = 0; row < B * T; ++row) {
    for (std::int64_t c = 0; c < C; ++c, ++i) {
      expected[i] = dropout_.scale() * kept(dropout_.window.row(row / T, row % T), c, dropout_.site);
    }
  }
  for (const Side& side : sides_) {
    EXPECT_TRUE((residual(side, dropout_, B, T, C) == expected).min()) << side.backend.name();

    const Buffer ones = side.full({B, T, C}, Values(1.0, B * T * C)), result = side.full({B, T, C});
    side.backend.residual_backward(result, ones, side.at_step(dropout_));
    EXPECT_TRUE((result.values() == expected).min()) << side.backend.name();

    const Buffer wpe = side.compute({64, C}, Values(1.0, 64 * C)), wte = side.compute({3, C});
    side.backend.embedding_forward(result, side.ints({B, T}), wte, wpe, 0, side.at_step(dropout_));
    EXPECT_TRUE((result.values() == expected).min()) << side.backend.name();
  }
}

// A rank of a tensor group has a range of the columns, and the mask of these.
TEST_P(DropoutMask, OfARangeOfColumnsIsThatOfTheWhole) {
  const std::int64_t B = 2, T = 3;
  for (const auto& [first, columns] : {std::pair(16, 20), {48, 128}, {128, 128}, {240, 300}, {400, 7}}) {
    dropout_.first_column = first;
    Values expected(B * T * columns);
    for (std::int64_t row = 0, i = 0; row < B * T; ++row) {
      for (std::int64_t c = 0; c < columns; ++c, ++i) {
        expected[i] =
            dropout_.scale() * kept(dropout_.window.row(row / T, row % T), first + c, dropout_.site);
      }
    }
    for (const Side& side : sides_) {
      EXPECT_TRUE((residual(side, dropout_, B, T, columns) == expected).min()) << side.backend.name();
      const Buffer ones = side.full({B, T, columns}, Values(1.0, B * T * columns)),
                   result = side.full({B, T, columns});
      side.backend.residual_backward(result, ones, side.at_step(dropout_));
      EXPECT_TRUE((result.values() == expected).min()) << side.backend.name() << ", columns from " << first;
    }
  }
}

// With unit vectors as values, the output is the probabilities after dropout, of D keys at a time.
TEST_P(DropoutMask, AttentionDropsWhatThePageSays) {
  const std::int64_t B = 2, T = 150, H = 2, D = 50, first_head = 3;
  dropout_.window.sequence = T;
  const Values noise = normal_values(B * T * 3 * H * D, 1);
  for (const Side& side : sides_) {
    for (std::int64_t first_key = 0; first_key < T; first_key += D) {
      Values qkv = noise;
      for (std::int64_t i = 0; i < B * T * H * D; ++i) {
        const std::int64_t t = i / (H * D) % T, d = i % D;
        qkv[i / (H * D) * 3 * H * D + 2 * H * D + i % (H * D)] = t == first_key + d;
      }
      const Buffer out = side.compute({B, T, H, D}), lse = side.full({B, H, T});
      side.backend.attention_forward(out, lse, side.compute({B, T, 3, H, D}, qkv), first_head,
                                     side.at_step(dropout_));
      const Values probabilities = out.values();
      for (std::int64_t i = 0; i < B * T * H * D; ++i) {
        const std::int64_t b = i / (T * H * D), t = i / (H * D) % T, h = i / D % H, key = first_key + i % D;
        const double expected =
            key <= t && kept(dropout_.window.row(b, t), key, attention_site(dropout_.site, first_head + h));
        ASSERT_EQ(probabilities[i] != 0, expected != 0)
            << side.backend.name() << " b " << b << " t " << t << " head " << h << " key " << key;
      }
    }
  }
}

TEST_P(DropoutMask, DoesNotDependOnHowTheBatchIsCut) {
  const std::int64_t B = 4, T = 64, C = 100;
  for (const Side& side : sides_) {
    const Values whole = residual(side, dropout_, B, T, C);
    Dropout second_half = dropout_;
    second_half.window.first_sample += 2;
    EXPECT_TRUE((residual(side, second_half, 2, T, C) == whole[std::slice(2 * T * C, 2 * T * C, 1)]).min());
    Dropout slice = dropout_;
    slice.window.first_position = 40;
    EXPECT_TRUE((residual(side, slice, 1, 24, C) == whole[std::slice(40 * C, 24 * C, 1)]).min());
  }
}

// Elements are dropped with probability threshold / 65536, which is not exactly p. All backends use this
// function for the scale, so comparing backends cannot find an error in it. It is rounded to float once.
TEST_P(DropoutMask, TheScaleIsThatOfTheShareThatIsDropped) {
  const double kept = 1 - dropout_.threshold() / 65536.0;
  EXPECT_NEAR(dropout_.scale() * kept, 1, kUnit);
}

TEST_P(DropoutMask, MeanIsUnbiased) {
  const std::int64_t B = 8, T = 64, C = 768;
  const double n = B * T * C, p = dropout_.threshold() / 65536.0;
  EXPECT_NEAR(p, GetParam(), 0.5 / 65536);
  const Values out = residual(cpu(), dropout_, B, T, C);
  // Each element is 1 / (1 - p) with probability 1 - p: variance p / (1 - p). Five standard deviations of the
  // mean, and the rounding of the scale to float.
  EXPECT_NEAR(out.sum() / n, 1, 5 * std::sqrt(p / (1 - p) / n) + kUnit);
}

TEST_P(DropoutMask, StepsSitesAndSeedsDiffer) {
  const Values mask = residual(cpu(), dropout_, 1, 64, 100);
  Dropout other_step = dropout_, other_site = dropout_, other_seed = dropout_;
  const Scalar<std::uint32_t> next_step(cpu().backend, Side::kStep + 1);
  other_step.step = next_step.get();
  ++other_site.site, ++other_seed.seed;
  for (const Dropout& other : {other_step, other_site, other_seed}) {
    const Values different = residual(cpu(), other, 1, 64, 100);
    // Independent masks differ in a share of 2 p (1 - p), up to five standard deviations.
    const double p = GetParam(), share = 2 * p * (1 - p), n = 6400;
    double differing = 0;
    for (std::size_t i = 0; i < mask.size(); ++i) differing += mask[i] != different[i];
    EXPECT_NEAR(differing / n, share, 5 * std::sqrt(share * (1 - share) / n));
  }
}

INSTANTIATE_TEST_SUITE_P(Shares, DropoutMask, testing::Values(0.1, 0.2, 0.5));

}  // namespace
}  // namespace shoal::test
