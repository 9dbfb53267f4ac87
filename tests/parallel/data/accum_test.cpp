// AccumAdamW in the engine: the window's mean gradient is state like the moments, in every layout.
#include <gmock/gmock.h>

#include "parallel/ranks_run.h"

namespace shoal::test {
namespace {

// Ten steps end in the middle of a window.
RanksRun windows_of(int accum_steps, const MeshShape& mesh = {}, int zero = 0, int replicate = 1) {
  return exact_run(AdamWConfig{.accum_steps = accum_steps}, mesh, zero, replicate);
}

TEST(Accumulation, DoesNotDependOnTheLayout) {
  const auto one = train(windows_of(4));
  const auto& mean = one.state.at("optimizer.a.transformer.wte.weight");
  EXPECT_TRUE(std::any_of(mean.begin(), mean.end(), [](float x) { return x != 0; }));
  EXPECT_EQ(one.state.size() % 4, 0u) << "of every parameter there are m, v and a";
  for (int zero = 0; zero <= 3; ++zero) {
    EXPECT_TRUE(train(windows_of(4, {.data = 4}, zero)).bytes() == one.bytes()) << "ZeRO " << zero;
  }
  EXPECT_TRUE(train(windows_of(4, {.data = 4}, 2, 2)).bytes() == one.bytes()) << "replicated";
  EXPECT_TRUE(train(windows_of(4, {.pipeline = 2, .data = 2}, 1)).bytes() == one.bytes()) << "stages";

  // Tensor ranks regroup sums, but data ranks of the same tensor size do not.
  const auto tensor = train(windows_of(4, {.tensor = 2})).bytes();
  EXPECT_TRUE(train(windows_of(4, {.data = 2, .tensor = 2}, 3)).bytes() == tensor) << "tensor";
}

TEST(Accumulation, OnDiskIsExactToo) {
  auto run = windows_of(4, {.data = 2}, 2);
  run.engine.offload = testing::TempDir();
  EXPECT_TRUE(train(run).bytes() == train(windows_of(4)).bytes());
}

// The moments of the first window act from its end on; parameters move before.
TEST(Accumulation, CommitsAtTheEndOfAWindow) {
  const auto any = [](const RunOutcome& outcome, const std::string& prefix) {
    return std::any_of(outcome.state.begin(), outcome.state.end(), [&](const auto& tensor) {
      const auto& [name, values] = tensor;
      return name.starts_with(prefix) &&
             std::any_of(values.begin(), values.end(), [](float x) { return x != 0; });
    });
  };
  auto run = windows_of(4);
  run.steps = 3;
  const auto before = train(run);
  EXPECT_FALSE(any(before, "optimizer.m."));
  EXPECT_FALSE(any(before, "optimizer.v."));
  EXPECT_TRUE(any(before, "optimizer.a."));
  EXPECT_NE(before.losses[0], before.losses[1]);
  run.steps = 4;
  const auto after = train(run);
  EXPECT_TRUE(any(after, "optimizer.m."));
  EXPECT_TRUE(any(after, "optimizer.v."));
  EXPECT_FALSE(any(after, "optimizer.a."));
}

// Adam and AdamW differ by the decay alone, and that acts on tensors of two or more dimensions: after one
// step vectors are the same bits.
TEST(Accumulation, DecayIsDecoupledOrPartOfTheGradient) {
  const auto outcome = [](bool l2, double decay) {
    auto run = windows_of(4);
    run.steps = 1;
    adamw_of(run.engine).l2 = l2;
    adamw_of(run.engine).weight_decay = decay;
    return train(run);
  };
  EXPECT_TRUE(outcome(true, 0).bytes() == outcome(false, 0).bytes());
  const auto adam = outcome(true, 0.1), adamw = outcome(false, 0.1);
  for (const auto& [name, values] : adam.state) {
    const bool vector = name.ends_with(".bias") || name.find(".ln_") != std::string::npos;
    if (name.starts_with("optimizer.m.") || name.starts_with("optimizer.v.")) continue;  // still zero
    EXPECT_EQ(values == adamw.state.at(name), vector) << name;
  }
}

TEST(Accumulation, TakesAThirdState) {
  const auto optimizer = [](int accum_steps, int zero) {
    const auto run = windows_of(accum_steps, {.data = 4}, zero);
    return engine_memory(run.model, run.engine, 4).optimizer;
  };
  for (int zero = 0; zero <= 3; ++zero) EXPECT_EQ(2 * optimizer(4, zero), 3 * optimizer(1, zero));
}

}  // namespace
}  // namespace shoal::test
