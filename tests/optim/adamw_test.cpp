#include "optim/adamw.h"

#include <gtest/gtest.h>

namespace shoal::test {
namespace {

TEST(AdamWStep, CorrectsForTheNumberOfUpdates) {
  const AdamWConfig config{.beta1 = 0.9, .beta2 = 0.95};
  EXPECT_FLOAT_EQ(adamw_step(config, 1e-3, 1, true).correction1, 0.1f);
  EXPECT_FLOAT_EQ(adamw_step(config, 1e-3, 1, true).correction2, 0.05f);
  EXPECT_FLOAT_EQ(adamw_step(config, 1e-3, 2, true).correction1, 0.19f);
  EXPECT_FLOAT_EQ(adamw_step(config, 1e-3, 2, true).correction2, 0.0975f);
  EXPECT_EQ(adamw_step(config, 1e-3, 100'000, true).correction1, 1.0f);
  EXPECT_EQ(adamw_step(config, 1e-3, 100'000, true).correction2, 1.0f);
}

// 1 - beta^1 is computed before it is rounded: from float32 betas it would be off by 1e-5 of itself.
TEST(AdamWStep, KeepsTheFirstCorrectionsExact) {
  EXPECT_EQ(adamw_step({.beta2 = 0.999}, 1e-3, 1, true).correction2, static_cast<float>(1 - 0.999));
}

TEST(AdamWStep, DecaysOnlyWhatIsToDecay) {
  const AdamWConfig config{.weight_decay = 0.1};
  EXPECT_EQ(adamw_step(config, 1e-3, 1, true).weight_decay, 0.1f);
  EXPECT_EQ(adamw_step(config, 1e-3, 1, false).weight_decay, 0.0f);
}

TEST(AdamWStep, PassesTheRestOn) {
  const auto step = adamw_step({.beta1 = 0.8, .beta2 = 0.98, .eps = 1e-7}, 3e-4, 5, true);
  EXPECT_EQ(step.lr, 3e-4f);
  EXPECT_EQ(step.beta1, 0.8f);
  EXPECT_EQ(step.beta2, 0.98f);
  EXPECT_EQ(step.eps, 1e-7f);
  EXPECT_EQ(step.grad_scale, nullptr);
}

}  // namespace
}  // namespace shoal::test
