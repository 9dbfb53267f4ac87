// Softmax cross-entropy of the cpu backend against the oracle.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/conformance.h"

namespace shoal::test {
namespace {

struct Stats {
  Values maximum, exp_sum, target_logit, argmax;
};

struct ClassRange {
  std::int64_t first, end;
};

class CpuCrossEntropy : public Conformance<std::tuple<DType, Shape>> {  // the shape is R, V, valid
 protected:
  CpuCrossEntropy() {
    for (std::size_t r = 2; r < targets_.size(); r += 3) targets_[r] = -1;  // ignored
    for (std::int64_t r = 0; r < R_; ++r) {
      for (std::int64_t c = valid_; c < V_; ++c) logits_[r * V_ + c] = 1e30;  // padding never wins
    }
    // Equal maxima, of which the first counts: within a vector of 16 lanes, and in the same lane of several.
    if (valid_ > 3) logits_[3] = logits_[1] = 20;
    if (R_ > 1 && valid_ > 50) logits_[V_ + 50] = logits_[V_ + 34] = logits_[V_ + 18] = 20;
  }

  // The statistics of the columns [first, first + count) alone, as for a shard of the vocabulary; the first
  // `valid` of them count.
  Stats stats(const Side& side, std::int64_t first, std::int64_t count, std::int64_t valid) const {
    const Buffer maximum = side.full({R_}), exp_sum = side.full({R_}), target = side.full({R_}),
                 argmax = side.ints({R_});
    side.backend.cross_entropy_stats({.logits = side.full({R_, count}, columns(first, count)),
                                      .targets = side.ints({R_}, targets_),
                                      .first_class = first,
                                      .valid = valid,
                                      .maximum = maximum,
                                      .exp_sum = exp_sum,
                                      .target_logit = target,
                                      .argmax = argmax});
    return {maximum.values(), exp_sum.values(), target.values(), argmax.values()};
  }
  // The statistics of shards of the vocabulary, merged as the ranks of a tensor group merge them.
  std::vector<ClassRange> shards(std::int64_t n) const {
    std::vector<ClassRange> ranges;
    for (std::int64_t i = 0; i < n; ++i) ranges.push_back({valid_ * i / n, valid_ * (i + 1) / n});
    return ranges;
  }
  Stats merged(const Side& side, const std::vector<ClassRange>& ranges) const {
    std::vector<Stats> parts;
    for (const auto& [first, end] : ranges) parts.push_back(stats(side, first, end - first + 1, end - first));
    Stats all = parts[0];
    for (const Stats& part : parts) {
      for (std::int64_t r = 0; r < R_; ++r) all.maximum[r] = std::max(all.maximum[r], part.maximum[r]);
    }
    all.exp_sum = 0, all.target_logit = 0;
    all.argmax = std::numeric_limits<std::int32_t>::max();
    for (const Stats& part : parts) {
      const Buffer exp_sum = side.full({R_}, part.exp_sum), argmax = side.ints({R_}, part.argmax);
      side.backend.cross_entropy_rescale(exp_sum, argmax, side.full({R_}, part.maximum),
                                         side.full({R_}, all.maximum));
      all.exp_sum = rounded(all.exp_sum + exp_sum.values(), side.full_type);
      all.target_logit += part.target_logit;
      for (std::int64_t r = 0; r < R_; ++r) all.argmax[r] = std::min(all.argmax[r], argmax.values()[r]);
    }
    return all;
  }
  Values backward(const Side& side, const Stats& given, std::int64_t first, std::int64_t count,
                  std::int64_t valid, bool in_place) const {
    const Buffer logits = side.full({R_, count}, columns(first, count)), separate = side.compute({R_, count});
    side.backend.cross_entropy_backward({.logits = logits,
                                         .targets = side.ints({R_}, targets_),
                                         .first_class = first,
                                         .valid = valid,
                                         .maximum = side.full({R_}, given.maximum),
                                         .exp_sum = side.full({R_}, given.exp_sum),
                                         .dlogits = in_place ? logits : separate,
                                         .scale = kScale});
    return (in_place ? logits : separate).values();
  }
  // Columns past the last are padding too.
  Values columns(std::int64_t first, std::int64_t count) const {
    Values shard(1e30, R_ * count);
    for (std::int64_t r = 0; r < R_; ++r) {
      for (std::int64_t c = 0; c < std::min(count, V_ - first); ++c) {
        shard[r * count + c] = logits_[r * V_ + first + c];
      }
    }
    return shard;
  }
  // Each term exp(logit - maximum) is off by the error of exp and by a rounding of its argument, which is no
  // larger than `range`. Then come V additions and, with a running maximum, at most as many rescalings.
  double term_error(double range) const { return kFunctionError + gamma(1) * range; }
  double range(std::int64_t r, std::int64_t first, std::int64_t count) const {
    const auto row = &logits_[r * V_];
    const auto [least, most] = std::minmax_element(row + first, row + first + count);
    return *most - *least;
  }
  Values exp_sum_bound(const Stats& expected, std::int64_t first, std::int64_t valid) const {
    Values bound = storage(expected.exp_sum, DType::f32);
    for (std::int64_t r = 0; r < R_; ++r) {
      bound[r] += expected.exp_sum[r] * (term_error(2 * range(r, first, valid)) + gamma(2 * valid));
    }
    return bound;
  }

  static constexpr float kScale = 0.125f;
  DType type_ = std::get<0>(GetParam());
  std::int64_t R_ = std::get<1>(GetParam())[0], V_ = std::get<1>(GetParam())[1],
               valid_ = std::get<1>(GetParam())[2];
  Values logits_ = normal_values(R_ * V_, 1, DType::f32, 0, 3), targets_ = random_integers(R_, 2, valid_);
};

TEST_P(CpuCrossEntropy, Stats) {
  const Stats actual = stats(cpu(), 0, V_, valid_), expected = stats(oracle(), 0, V_, valid_);
  EXPECT_TRUE((actual.maximum == expected.maximum).min());
  EXPECT_TRUE((actual.target_logit == expected.target_logit).min());
  EXPECT_TRUE((actual.argmax == expected.argmax).min());
  expect_within(actual.exp_sum, expected.exp_sum, exp_sum_bound(expected, 0, valid_));
}

TEST_P(CpuCrossEntropy, Loss) {
  const Stats given = stats(cpu(), 0, V_, valid_);
  const auto run = [&](const Side& side) {
    const Buffer losses = side.full({R_});
    side.backend.cross_entropy_loss({.targets = side.ints({R_}, targets_),
                                     .maximum = side.full({R_}, given.maximum),
                                     .exp_sum = side.full({R_}, given.exp_sum),
                                     .target_logit = side.full({R_}, given.target_logit),
                                     .losses = losses});
    return losses.values();
  };
  const Values expected = run(oracle()), log_sum = std::abs(std::log(given.exp_sum));
  expect_within(run(cpu()), expected,
                kFunctionError * log_sum +
                    gamma(1) * (std::abs(given.maximum) + log_sum + std::abs(given.target_logit)) +
                    storage(expected, DType::f32));
  for (std::int64_t r = 2; r < R_; r += 3) EXPECT_EQ(run(cpu())[r], 0);
}

// The probability is off by the error of its exponential, whose argument may be logit - maximum or logit -
// (maximum + log exp_sum), and of one division. Subtracting the one-hot target and scaling round once each.
TEST_P(CpuCrossEntropy, BackwardInPlaceAsWell) {
  const Stats given = stats(cpu(), 0, V_, valid_);
  const Values expected = backward(oracle(), given, 0, V_, valid_, false);
  Values bound = gamma(2) * std::abs(expected);
  for (std::int64_t r = 0; r < R_; ++r) {
    const double log_sum = std::log(given.exp_sum[r]);
    for (std::int64_t c = 0; c < valid_; ++c) {
      const double p = std::exp(logits_[r * V_ + c] - given.maximum[r] - log_sum);
      const double size = std::abs(logits_[r * V_ + c]) + std::abs(given.maximum[r]) + log_sum;
      bound[r * V_ + c] += kScale * p * (kFunctionError + gamma(2) * size + gamma(2));
    }
  }
  expect_within(backward(cpu(type_), given, 0, V_, valid_, false), expected,
                bound + storage(expected, type_));
  expect_within(backward(cpu(), given, 0, V_, valid_, true), expected, bound + storage(expected, DType::f32));
}

// Also where the gradient takes the place of the logits.
TEST_P(CpuCrossEntropy, OneOpHasTheBitsOfThree) {
  for (const bool in_place : {false, true}) {
    const Side side = cpu(in_place ? DType::f32 : type_);
    const auto run = [&](bool one) {
      const Buffer logits = side.full({R_, V_}, logits_), separate = side.compute({R_, V_}),
                   targets = side.ints({R_}, targets_), maximum = side.full({R_}), exp_sum = side.full({R_}),
                   target = side.full({R_}), argmax = side.ints({R_}), losses = side.full({R_});
      const Buffer& dlogits = in_place ? logits : separate;
      const CrossEntropy args{.logits = logits,
                              .targets = targets,
                              .valid = valid_,
                              .maximum = maximum,
                              .exp_sum = exp_sum,
                              .target_logit = target,
                              .argmax = argmax,
                              .losses = losses,
                              .dlogits = dlogits,
                              .scale = kScale};
      one ? side.backend.cross_entropy_train(args) : side.backend.Backend::cross_entropy_train(args);
      return std::vector{maximum.bytes(), exp_sum.bytes(), target.bytes(),
                         argmax.bytes(),  losses.bytes(),  dlogits.bytes()};
    };
    EXPECT_EQ(run(true), run(false)) << (in_place ? "in place" : "apart");
  }
}

// Shards of down to one class. Rescaling multiplies a shard's sum by one more exponential, whose argument and
// product round; then the shards are added.
TEST_P(CpuCrossEntropy, ShardsOfTheVocabularyMakeTheWhole) {
  const Stats whole = stats(oracle(), 0, V_, valid_);
  for (const std::int64_t n :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::min<std::int64_t>(valid_, 70)}) {
    if (n > valid_) continue;
    Values bound = exp_sum_bound(whole, 0, valid_);
    for (std::int64_t r = 0; r < R_; ++r) {
      bound[r] += whole.exp_sum[r] * (term_error(range(r, 0, valid_)) + gamma(n + 1));
    }
    for (const Side& side : {cpu(type_), Side{oracle().backend, type_}}) {
      const auto ranges = shards(n);
      const Stats all = merged(side, ranges);
      EXPECT_TRUE((all.maximum == whole.maximum).min()) << side.backend.name();
      EXPECT_TRUE((all.target_logit == whole.target_logit).min()) << side.backend.name();
      EXPECT_TRUE((all.argmax == whole.argmax).min()) << side.backend.name();
      expect_within(all.exp_sum, whole.exp_sum, bound);

      // Given the statistics, backward is element-wise, so the shards' gradients have the bits of the whole.
      const Values expected = backward(side, all, 0, V_, valid_, false);
      for (const auto& [first, end] : ranges) {
        const std::int64_t count = end - first + 1;  // with one of padding
        const Values shard = backward(side, all, first, count, end - first, false);
        for (std::int64_t i = 0; i < R_ * count; ++i) {
          const std::int64_t r = i / count, c = i % count;
          ASSERT_EQ(shard[i], c == count - 1 ? 0 : expected[r * V_ + first + c]) << r << ", " << first + c;
        }
      }
    }
  }
}

// Also with several shards, where only one has this logit.
TEST_P(CpuCrossEntropy, ALogitThatIsNotFiniteShowsInTheLoss) {
  for (const double poison :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (std::int64_t r = 0; r < R_; ++r) logits_[r * V_ + r % valid_] = poison;
    for (const Side& side : {cpu(), oracle()}) {
      for (const Stats& s :
           {stats(side, 0, V_, valid_), merged(side, shards(std::min<std::int64_t>(valid_, 3)))}) {
        const Buffer losses = side.full({R_});
        side.backend.cross_entropy_loss({.targets = side.ints({R_}, targets_),
                                         .maximum = side.full({R_}, s.maximum),
                                         .exp_sum = side.full({R_}, s.exp_sum),
                                         .target_logit = side.full({R_}, s.target_logit),
                                         .losses = losses});
        for (std::int64_t r = 0; r < R_; ++r) {
          const bool counts = targets_[r] >= 0;
          EXPECT_EQ(std::isfinite(losses.values()[r]), !counts) << side.backend.name() << ", row " << r;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuCrossEntropy,
                         testing::Combine(kComputeTypes,
                                          testing::Values(Shape{1, 2, 2}, Shape{5, 7, 5}, Shape{5, 8, 3},
                                                          Shape{33, 65, 65}, Shape{64, 128, 65},
                                                          Shape{4, 1003, 1003}, Shape{7, 1024, 1003},
                                                          Shape{2, 5008, 5003})));

}  // namespace
}  // namespace shoal::test
