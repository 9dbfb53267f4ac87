// Runs with AccumAdamW: equality with AdamW, exact resumes, and the changes that a resume refuses.
#include "config/layout.h"
#include "config/memory.h"
#include "config/plan.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Accumulation : public TinyRuns {};

const Settings kWindows = {"optim.name=accum_adamw", "optim.accum_steps=4", "run.deterministic=layout"};

TEST_F(Accumulation, InWindowsOfOneStepIsAdamW) {
  for (const std::string backend : {"cpu", "reference"}) {
    const Settings settings = {"train.backend=" + backend, "train.dtype=bfloat16", "model.dropout=0.1"};
    train("adamw" + backend, settings);
    train("accum" + backend, with(settings, {"optim.name=accum_adamw", "optim.accum_steps=1"}));
    EXPECT_EQ(tensors("accum" + backend, 12), tensors("adamw" + backend, 12));
    EXPECT_EQ(reproducible_metrics("accum" + backend), reproducible_metrics("adamw" + backend));
  }
}

// Runs are stopped after 6 and 9 of 12 steps, in the middle of windows, and resumed on other numbers of
// ranks. Skipped steps are not part of a window.
TEST_F(Accumulation, AWindowGoesOnOnOtherRanks) {
  const auto settings = with(kWindows, {"train.spike_zscore=1e-9", "train.spike_window=8",
                                        "train.on_bad_step=skip", "optim.lr=1e-5"});
  train("one", settings);
  ASSERT_THAT(log_of("one"), HasSubstr("skipped"));
  train("several", with(settings, {"train.steps=6", "parallel.zero=3"}), 3);
  train("several", with(settings, {"train.steps=9", "parallel.pipeline=2", "init.from=resume"}), 2);
  train("several", with(settings, {"init.from=resume"}));
  EXPECT_EQ(tensors("several", 12), tensors("one", 12));
  EXPECT_EQ(reproducible_metrics("several"), reproducible_metrics("one"));
  EXPECT_TRUE(tensors("one", 12).contains("optimizer.a.transformer.wte.weight"));
}

TEST_F(Accumulation, AnotherOptimizerDoesNotResume) {
  train("run", with(kWindows, {"train.steps=6"}));
  const auto refused = [&](const Settings& settings) {
    return error_of([&] { train("run", with(settings, {"init.from=resume"})); });
  };
  EXPECT_THAT(refused(with(kWindows, {"optim.accum_steps=5"})),
              AllOf(HasSubstr("optim.accum_steps = 5 (the checkpoint has 4)"), Not(HasSubstr("optim.name"))));
  EXPECT_THAT(refused(with(kWindows, {"optim.name=accum_adam"})),
              HasSubstr("optim.name = \"accum_adam\" (the checkpoint has \"accum_adamw\")"));
  EXPECT_THAT(refused({"run.deterministic=layout"}),
              AllOf(HasSubstr("optim.name = \"adamw\""), HasSubstr("optim.accum_steps = 1")));
  EXPECT_EQ(train("run", with(kWindows, {"init.from=resume"})).step, 12);

  // Any optimizer can start from parameters only.
  const auto from = "init.from=checkpoint:" + checkpoint("run", 6).string();
  EXPECT_EQ(train("adamw", {from}).step, 12);
  EXPECT_EQ(train("longer", with(kWindows, {from, "optim.accum_steps=5"})).step, 12);
}

TEST_F(Accumulation, TakesMemoryForTheWindow) {
  const auto memory = [&](const Settings& settings) {
    auto given = config("any", with(settings, {"model.vocab_size=64"}));
    resolve_layout(given, 1);
    return estimate_memory(make_plan(given));
  };
  const auto adamw = memory({}), windows = memory(kWindows);
  EXPECT_EQ(2 * windows.optimizer, 3 * adamw.optimizer);
  // The copy in memory has a fourth tensor; here the write buffers are as large as that.
  EXPECT_EQ(3 * windows.checkpoint, 4 * adamw.checkpoint);
}

}  // namespace
}  // namespace shoal::test
