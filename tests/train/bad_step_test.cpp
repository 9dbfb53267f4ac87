// Steps whose loss or gradient is not finite, and spikes of the loss.
#include <vector>

#include "checkpoint/reader.h"
#include "train/model_io.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;
using Trainers = TinyRuns;

// The learning rate overflows float32, so the first update makes the parameters infinite.
TEST_F(Trainers, ABadStepIsNamed) {
  const Settings settings = {"optim.lr=1e39", "lr_schedule.warmup_steps=0"};
  const auto error = error_of([&] { train("run", with(settings, {"eval.at_start=false"})); });
  EXPECT_THAT(error, HasSubstr("step 2: the loss is not finite; micro-batch 1 of 3 (samples 0 to 1"));
  EXPECT_THAT(error, HasSubstr("first tensor that is not finite: transformer.wte.weight"));
  EXPECT_THAT(error, HasSubstr("Nothing was saved yet"));
  // Skipping steps cannot repair bad parameters.
  EXPECT_THAT(error_of([&] { train("skip", with(settings, {"train.on_bad_step=skip"})); }),
              HasSubstr("transformer.wte.weight"));
}

TEST_F(Trainers, ABadStepLeavesTheLastCheckpoint) {
  train("run", {"train.steps=6"});
  const auto before = state("run", 6);
  EXPECT_THAT(error_of([&] {
                train("run", {"init.from=resume", "optim.lr=1e39"});
              }),
              HasSubstr("step-00000006 is untouched"));
  EXPECT_EQ(state("run", 6), before);
  EXPECT_EQ(train("run", {"init.from=resume"}).step, 12);
}

// One huge step leaves finite parameters with gradients that are not finite: every later step is skipped.
TEST_F(Trainers, BadGradientsAreSkippedAndCounted) {
  const auto result = train("run", {"optim.lr=1e20", "lr_schedule.warmup_steps=0", "eval.interval=0",
                                    "train.on_bad_step=skip", "checkpoint.interval=1"});
  EXPECT_EQ(result.step, 12);
  EXPECT_EQ(state("run", 12), state("run", 1));
  EXPECT_EQ(train_state_of(CheckpointReader(checkpoint("run", 12))).skipped_steps, 11);
  EXPECT_THAT(log_of("run"), HasSubstr("step 12: the loss is not finite; micro-batch 1 of 3"));
  EXPECT_THAT(log_of("run"), HasSubstr("not finite: the gradient of transformer.wte.weight; skipped"));
}

// Half of all losses are above the mean, so some are among these steps; the detector has its lowest
// threshold.
TEST_F(Trainers, SpikesAreSkippedAndCounted) {
  const Settings settings = {
      "train.steps=40",  "train.spike_zscore=1e-9",   "train.spike_window=8",     "optim.lr=1e-4",
      "eval.interval=0", "lr_schedule.name=constant", "lr_schedule.decay_steps=0"};
  train("skip", with(settings, {"train.on_bad_step=skip", "checkpoint.interval=1"}));
  const auto steps = metrics("skip").steps;
  ASSERT_EQ(steps.size(), 40u);

  std::vector<double> window;
  std::int64_t skipped = 0;
  for (const auto& step : steps) {
    double mean = 0;
    for (double loss : window) mean += loss / 8;
    const bool spike = window.size() == 8 && step.loss > mean + 1e-8;
    const auto unchanged = step.step > 1 && state("skip", step.step) == state("skip", step.step - 1);
    EXPECT_EQ(unchanged, spike) << "step " << step.step;
    EXPECT_EQ(train_state_of(CheckpointReader(checkpoint("skip", step.step))).skipped_steps,
              skipped += spike);
    if (spike) {
      EXPECT_THAT(log_of("skip"), HasSubstr(fmt::format("step {}: the loss, {:.4f}", step.step, step.loss)));
    } else {
      window.push_back(step.loss);
      if (window.size() > 8) window.erase(window.begin());
    }
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 32);

  EXPECT_THAT(error_of([&] { train("stop", settings); }), HasSubstr("standard deviations above the last 8"));
}

}  // namespace
}  // namespace shoal::test
