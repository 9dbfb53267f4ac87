#include "generate/sample_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/philox.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Logits = std::vector<float>;

constexpr std::size_t kClasses = 37;

// Logits on a coarse grid, so that there are equal ones.
Logits random_logits(std::uint32_t row, std::size_t classes = kClasses) {
  Logits logits(classes);
  for (std::uint32_t i = 0; i < classes; ++i) {
    const auto block = philox(philox_key(11, PhiloxStream::corpus), {i, row, 0, 0});
    logits[i] = static_cast<float>(std::round(4 * to_normal(block)) / 2);
  }
  return logits;
}

SampleOptions options(double temperature, int top_k = 0, double top_p = 1) {
  return {.temperature = temperature, .top_k = top_k, .top_p = top_p};
}

std::vector<double> softmax(const Logits& logits, double temperature, const std::vector<bool>& kept) {
  std::vector<double> p(logits.size());
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = kept[i] ? std::exp(double{logits[i]} / temperature) : 0;
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (auto& x : p) x /= sum;
  return p;
}

// All tokens, the most likely first.
std::vector<std::size_t> by_likelihood(const Logits& logits) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
  return order;
}

// The probabilities that the options leave, by sorting everything.
std::vector<double> brute_force(const Logits& logits, const SampleOptions& rule) {
  const auto order = by_likelihood(logits);
  std::vector<bool> kept(logits.size(), true);
  if (rule.top_k > 0) {
    for (std::size_t i = static_cast<std::size_t>(rule.top_k); i < order.size(); ++i) kept[order[i]] = false;
  }
  const auto p = softmax(logits, rule.temperature, kept);
  double held = 0;
  for (const auto id : order) {
    // The slack keeps a sum that reaches the share exactly from being missed by rounding.
    if (held >= rule.top_p - 1e-12) kept[id] = false;
    held += p[id];
    if (p[id] < rule.min_p * p[order.front()] * (1 - 1e-12)) kept[id] = false;
  }
  return softmax(logits, rule.temperature, kept);
}

// On an even grid of n draws a token is chosen p * n times, to within one.
void expect_distribution(const Logits& logits, const SampleOptions& rule) {
  constexpr int kDraws = 300;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(sample_token(logits, rule, (i + 0.5) / kDraws))];
  }
  const auto expected = brute_force(logits, rule);
  for (std::size_t id = 0; id < logits.size(); ++id) {
    EXPECT_NEAR(counts[id], expected[id] * kDraws, 1.0 + 1e-6) << "token " << id;
    if (expected[id] == 0) {
      EXPECT_EQ(counts[id], 0) << "token " << id << " was cut";
    }
  }
}

TEST(SampleToken, DrawsFromWhatTheOptionsLeave) {
  for (std::uint32_t row = 0; row < 2; ++row) {
    const auto logits = random_logits(row);
    for (const double temperature : {0.3, 1.0, 4.0}) {
      for (const int top_k : {0, 1, 5, 36, 37, 1000}) {
        for (const double top_p : {0.05, 0.5, 0.93, 1.0}) {
          SCOPED_TRACE(
              fmt::format("row {} temperature {} top_k {} top_p {}", row, temperature, top_k, top_p));
          expect_distribution(logits, options(temperature, top_k, top_p));
        }
      }
    }
  }
}

TEST(SampleToken, MinPCutsWhatIsMuchLessLikelyThanTheFirst) {
  for (std::uint32_t row = 0; row < 3; ++row) {
    for (const double min_p : {0.01, 0.2, 0.7, 1.0}) {
      auto rule = options(0.9, 0, 0.95);
      rule.min_p = min_p;
      expect_distribution(random_logits(row), rule);
    }
  }
}

TEST(SampleToken, LogprobsAreTheModelsOwn) {
  const Logits logits = {1, 3, -2, 3, 0};
  const auto p = softmax(logits, 1, std::vector<bool>(logits.size(), true));
  const auto found = logprobs_of(logits, 4, 3);
  EXPECT_NEAR(found.chosen, std::log(p[4]), 1e-12);
  ASSERT_EQ(found.top.size(), 3u);
  EXPECT_EQ(found.top[0].first, 1);
  EXPECT_EQ(found.top[1].first, 3);
  EXPECT_EQ(found.top[2].first, 0);
  EXPECT_NEAR(found.top[2].second, std::log(p[0]), 1e-12);
  EXPECT_TRUE(logprobs_of(logits, 0, 0).top.empty());
}

// The vocabulary has many blocks of logits, and its last block is not full.
TEST(SampleToken, TheMostLikelyOfManyAreThoseOfASort) {
  for (std::uint32_t row = 0; row < 3; ++row) {
    const auto logits = random_logits(row, 5003);
    const auto order = by_likelihood(logits);
    EXPECT_EQ(sample_token(logits, options(0), 0.5), order[0]);
    for (const std::size_t count : {1, 5, 78, 79, 80, 1000, 5003, 9999}) {
      const auto top = logprobs_of(logits, 0, static_cast<int>(count)).top;
      ASSERT_EQ(top.size(), std::min(count, order.size()));
      for (std::size_t i = 0; i < top.size(); ++i) ASSERT_EQ(top[i].first, order[i]) << count << ", " << i;
      // The last one that is drawn is the highest id of those that are left.
      const auto last = *std::ranges::max_element(order.begin(), order.begin() + std::ssize(top));
      EXPECT_EQ(sample_token(logits, options(1, static_cast<int>(count)), 1 - 0x1p-53), last) << count;
    }
  }
}

TEST(SampleToken, TemperatureZeroIsTheFirstOfTheMostLikely) {
  Logits logits = {1, 3, -2, 3, 0};
  for (const double uniform : {0.0, 0.5, 0.999}) EXPECT_EQ(sample_token(logits, options(0), uniform), 1);
}

// Two of four equal tokens hold exactly half, and half is enough.
TEST(SampleToken, TopPKeepsTheFewestThatHoldTheShare) {
  const Logits logits = {0, 0, 0, 0};
  const std::vector<std::pair<double, std::int32_t>> last = {{0.25, 0}, {0.5, 1}, {0.75, 2}, {0.76, 3}};
  for (const auto& [top_p, token] : last) {
    EXPECT_EQ(sample_token(logits, options(1, 0, top_p), 0.0), 0) << top_p;
    EXPECT_EQ(sample_token(logits, options(1, 0, top_p), 1 - 0x1p-53), token) << top_p;
  }
}

TEST(SampleToken, ExtremesOfTemperatureAndLogits) {
  const Logits logits = {-3e38f, 3e38f, 0, 1};
  for (const double temperature : {1e-300, 1e-3, 1.0}) {
    for (const double uniform : {0.0, 0.5, 1 - 0x1p-53}) {
      EXPECT_EQ(sample_token(logits, options(temperature), uniform), 1);
    }
  }
  EXPECT_EQ(sample_token(Logits{0, 0, 0, 0}, options(1e300), 1 - 0x1p-53), 3);
  EXPECT_EQ(sample_token(Logits{5}, options(1, 200, 0.1), 0.7), 0);
}

TEST(SampleToken, OptionsThatCutNothingChangeNothing) {
  const auto logits = random_logits(9);
  for (double uniform = 0; uniform < 1; uniform += 0.01) {
    const auto token = sample_token(logits, options(1), uniform);
    EXPECT_EQ(sample_token(logits, options(1, static_cast<int>(kClasses)), uniform), token);
    EXPECT_EQ(sample_token(logits, options(1, 0, 1 - 1e-16), uniform), token);
  }
}

TEST(SampleToken, LogitsThatAreNotFiniteAreAnError) {
  using Limits = std::numeric_limits<float>;
  for (const float bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      EXPECT_THAT(
          [&] {
            sample_token(Logits{0, 1, bad, 2}, options(temperature), 0.5);
          },
          ThrowsMessage<Error>(HasSubstr("logit of token 2")));
    }
    EXPECT_THAT(
        [&] {
          logprobs_of(Logits{0, 1, bad, 2}, 0, 1);
        },
        ThrowsMessage<Error>(HasSubstr("logit of token 2")));
  }
}

TEST(SampleOptions, OutOfRangeIsTheUsersFault) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NO_THROW(validate({}));
  EXPECT_NO_THROW(validate(options(0, 0, 1)));
  EXPECT_THAT([&] { validate(options(-0.1)); }, ThrowsMessage<UserError>(HasSubstr("temperature of -0.1")));
  EXPECT_THROW(validate(options(nan)), UserError);
  EXPECT_THROW(validate(options(1, -1)), UserError);
  for (const double top_p : {0.0, -1.0, 1.1, nan}) EXPECT_THROW(validate(options(1, 0, top_p)), UserError);
  EXPECT_THROW(validate({.min_p = 1.1}), UserError);
  for (const double penalty : {0.0, 0.009, 101.0, 1e300, nan})
    EXPECT_THROW(validate({.repetition_penalty = penalty}), UserError) << penalty;
  for (const double penalty : {-1e7, 1e39, nan}) {
    EXPECT_THROW(validate({.presence_penalty = penalty}), UserError) << penalty;
    EXPECT_THROW(validate({.frequency_penalty = penalty}), UserError) << penalty;
  }
  EXPECT_THROW(validate({.max_tokens = -1}), UserError);
}

}  // namespace
}  // namespace shoal
