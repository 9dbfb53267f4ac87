#include "train/start.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "config/schema.h"
#include "core/error.h"
#include "train/tiny_run.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

// The message that refuses a resume of these settings with others; "" where it is allowed.
std::string refusal(const Arguments& saved, const Arguments& now) {
  Config before, after;
  apply_arguments(before, saved);
  apply_arguments(after, now);
  try {
    check_resume(before, after, counts_in_steps(after), "the-checkpoint");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckResume, RefusesEachKeyThatMakesItAnotherRun) {
  for (const std::string setting :
       {"run.seed=7", "data.sampling=epochs", "data.stride=3", "data.truncate=0.5", "optim.name=muon",
        "optim.accum_steps=4", "optim.ema=0.5", "outer.interval=3", "outer.compress=bfloat16",
        "optim.frozen=embedding", "lora.rank=4", "lora.alpha=3", "lora.targets=mlp.c_fc",
        "model.n_layer=3"}) {
    const auto key = setting.substr(0, setting.find('='));
    for (const bool back : {false, true}) {
      const Arguments none, one = {setting};
      EXPECT_THAT(refusal(back ? one : none, back ? none : one), HasSubstr("\n  " + key + " = ")) << setting;
    }
  }
}

// Epochs, and lengths in tokens, are counted in steps.
TEST(CheckResume, BatchesOfAnotherSizeAreOtherDataWhereStepsCountThem) {
  for (const Arguments& counted : {Arguments{"data.sampling=epochs"},
                                   {"lr_schedule.decay_tokens=1000"},
                                   {"lr_schedule.warmup_tokens=10"}}) {
    auto other = counted;
    other.push_back("train.global_batch=2");
    EXPECT_THAT(refusal(counted, other), HasSubstr("\n  train.global_batch = 2 (the checkpoint has "));
  }
}

TEST(CheckResume, TakesWhatKeepsTheTensorsAndTheData) {
  for (const std::string setting :
       {"optim.lr=0.5", "train.steps=9", "train.global_batch=2", "parallel.zero=2", "model.preset=gpt2",
        "init.from=resume", "log.interval=3"}) {
    EXPECT_EQ(refusal({}, {setting}), "") << setting;
  }
  EXPECT_EQ(refusal({"optim.ema=0.5"}, {"optim.ema=0.9"}), "");
  EXPECT_EQ(refusal({"outer.interval=3"}, {"outer.interval=4"}), "");
  EXPECT_EQ(refusal({"outer.compress=topk:0.1"}, {"outer.compress=bfloat16"}), "");
}

class FindStart : public test::TinyRuns {};

TEST_F(FindStart, RefusesWeightsThatAreNone) {
  auto run = config("run");
  run.init.from = "hf:" + (folder_ / "").string();
  run_threads({}, [&](World& world) {
    EXPECT_THROW(find_start(run, Mixture({{run.data.dir, 1}}, {}), false, world.ranks), UserError);
  });
}

}  // namespace
}  // namespace shoal
