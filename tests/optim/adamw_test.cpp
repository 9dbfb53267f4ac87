#include "optim/adamw.h"

#include <gtest/gtest.h>

namespace shoal::test {
namespace {

TEST(AdamWSettings, CorrectsForTheNumberOfUpdates) {
  const AdamWConfig config{.beta1 = 0.9, .beta2 = 0.95};
  EXPECT_FLOAT_EQ(adamw_scalars(config, 1e-3, 1).correction1, 0.1f);
  EXPECT_FLOAT_EQ(adamw_scalars(config, 1e-3, 1).correction2, 0.05f);
  EXPECT_FLOAT_EQ(adamw_scalars(config, 1e-3, 2).correction1, 0.19f);
  EXPECT_FLOAT_EQ(adamw_scalars(config, 1e-3, 2).correction2, 0.0975f);
  EXPECT_EQ(adamw_scalars(config, 1e-3, 100'000).correction1, 1.0f);
  EXPECT_EQ(adamw_scalars(config, 1e-3, 100'000).correction2, 1.0f);
}

// 1 - beta^1 is computed before it is rounded: from float32 betas it would be off by 1e-5 of itself.
TEST(AdamWSettings, KeepsTheFirstCorrectionsExact) {
  EXPECT_EQ(adamw_scalars({.beta2 = 0.999}, 1e-3, 1).correction2, static_cast<float>(1 - 0.999));
}

TEST(AdamWSettings, DecaysOnlyWhatIsToDecay) {
  const AdamWConfig config{.weight_decay = 0.1};
  EXPECT_EQ(adamw_settings(config, true).weight_decay, 0.1f);
  EXPECT_EQ(adamw_settings(config, false).weight_decay, 0.0f);
}

TEST(AdamWSettings, PassesTheRestOn) {
  const AdamWConfig config{.beta1 = 0.8, .beta2 = 0.98, .eps = 1e-7};
  const auto settings = adamw_settings(config, true);
  EXPECT_EQ(adamw_scalars(config, 3e-4, 5).lr, 3e-4f);
  EXPECT_EQ(settings.beta1, 0.8f);
  EXPECT_EQ(settings.beta2, 0.98f);
  EXPECT_EQ(settings.eps, 1e-7f);
  EXPECT_EQ(settings.grad_scale, nullptr);
}

}  // namespace
}  // namespace shoal::test
