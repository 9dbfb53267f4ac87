#include "planner/distribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr PhiloxKey kKey = philox_key(1, PhiloxStream::simulation);
constexpr int kDraws = 40000;

Distribution of(std::string_view text) { return {text, time_units(), 0}; }
double constant(std::string_view text) {
  const auto distribution = of(text);
  EXPECT_FALSE(distribution.varies()) << text;
  return distribution.draw(kKey, 0, 0);
}

// Mean and standard deviation.
std::pair<double, double> moments(std::string_view text) {
  const auto distribution = of(text);
  EXPECT_TRUE(distribution.varies()) << text;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = distribution.draw(kKey, i % 200, i / 200);
    sum += x, squares += x * x;
  }
  const double mean = sum / kDraws;
  return {mean, std::sqrt(squares / kDraws - mean * mean)};
}

TEST(Distribution, NumbersAndTheirUnits) {
  EXPECT_EQ(constant("100"), 100);
  EXPECT_EQ(constant(" 0.5s "), 500);
  EXPECT_EQ(constant("1e2us"), 0.1);
  EXPECT_EQ(constant("1 + 2 * (3 + 4ms)"), 15);
  EXPECT_EQ(Distribution("2.5gbit", bandwidth_units(), 0).draw(kKey, 0, 0), 2500);
}

// The mean of 40,000 draws has a standard error of sd / 200; five times that is allowed. The standard
// deviation has less than that times the root of half the kurtosis, which is at most 3 here.
TEST(Distribution, MomentsAreThoseOfTheName) {
  const auto expect = [](const char* text, double mean, double sd) {
    const auto [m, s] = moments(text);
    EXPECT_NEAR(m, mean, 5 * sd / 200) << text;
    EXPECT_NEAR(s, sd, 15 * sd / 200) << text;
  };
  expect("normal(100, 10)", 100, 10);
  expect("uniform(50, 150)", 100, 100 / std::sqrt(12));
  expect("exp(20)", 20, 20);
  expect("100 + exp(20)", 120, 20);
  const double s2 = 0.3 * 0.3;
  expect("lognormal(100, 0.3)", 100 * std::exp(s2 / 2), 100 * std::exp(s2 / 2) * std::sqrt(std::exp(s2) - 1));
  expect("mix(0.75: 100, 0.25: 400)", 175, 300 * std::sqrt(0.75 * 0.25));
  expect("normal(10, 1) * normal(10, 1)", 100, std::sqrt(201));
}

TEST(Distribution, EachIsDrawnOncePerWorker) {
  const auto fixed = of("each(normal(100, 10))"), both = of("each(normal(100, 10)) + exp(1)");
  EXPECT_FALSE(fixed.varies());
  EXPECT_TRUE(both.varies());
  EXPECT_EQ(fixed.draw(kKey, 3, 0), fixed.draw(kKey, 3, 77));
  EXPECT_NE(fixed.draw(kKey, 3, 0), fixed.draw(kKey, 4, 0));
  EXPECT_NE(both.draw(kKey, 3, 0), both.draw(kKey, 3, 1));
  // Always slow or always fast.
  const auto mixed = of("each(mix(0.5: 1, 0.5: 2))");
  EXPECT_EQ(mixed.draw(kKey, 9, 1), mixed.draw(kKey, 9, 2));
}

TEST(Distribution, AtIsForOneAlone) {
  const auto slow = of("at(3: 400, 100)");
  EXPECT_EQ(slow.draw(kKey, 3, 1), 400);
  EXPECT_EQ(slow.draw(kKey, 2, 1), 100);
  EXPECT_FALSE(slow.varies());
  EXPECT_TRUE(of("at(3: exp(1), 100)").varies());
}

TEST(Distribution, PurposesAndSeedsDiffer) {
  const Distribution a("exp(1)", time_units(), 0), b("exp(1)", time_units(), 1);
  EXPECT_NE(a.draw(kKey, 0, 0), b.draw(kKey, 0, 0));
  EXPECT_NE(a.draw(kKey, 0, 0), a.draw(philox_key(2, PhiloxStream::simulation), 0, 0));
  EXPECT_EQ(a.draw(kKey, 0, 0), Distribution("exp(1)", time_units(), 0).draw(kKey, 0, 0));
}

TEST(Distribution, MistakesAreNamedWithTheirPlace) {
  const auto refused = [](const char* text, const char* words) {
    EXPECT_THAT([=] { of(text); }, ThrowsMessage<UserError>(HasSubstr(words))) << text;
  };
  refused("", "at character 1: a number was expected");
  refused("normal(100", "at character 11: ',' was expected");
  refused("normal(100, 10", "')' was expected");
  refused("100 200", "at character 5: nothing more was expected");
  refused("100km", "at character 4: 'km' is not a unit; there are us, ms, s");
  refused("gauss(1, 2)", "at character 1: 'gauss' is not a distribution");
  refused("mix(0.5: 1, 0.4: 2)", "add up to 0.9, not to 1");
  refused("lognormal(100, 1ms)", "this number has no unit");
  refused("uniform(2, 1)", "goes upwards");
  refused("-5", "negative");
  refused("nan", "not a distribution");
  refused("1e999", "a number was expected");
  refused(std::string(1000, '(').c_str(), "nested too deeply");
}

}  // namespace
}  // namespace shoal
