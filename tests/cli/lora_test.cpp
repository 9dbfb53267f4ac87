// Fine-tuning by adapters: started from a checkpoint, resumed, in other layouts, exported, merged and read
// back.
#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Lora : public TinyRuns {
 protected:
  static inline const Settings kAdapters = {"lora.rank=2", "lora.targets=all", "lora.alpha=4"};

  Lora() { train_well({"run.name=base", "train.steps=4", "model.dropout=0"}); }

  Settings tune(const Settings& settings) const {
    return with(with({"init.from=checkpoint:runs/base", "model.dropout=0", "train.steps=6",
                      "checkpoint.interval=3", "run.deterministic=layout", "train.micro_batch=1"},
                     kAdapters),
                settings);
  }
  std::string eval_of(const std::string& checkpoint, const Settings& settings = {}) const {
    const auto result = shoal(with({"eval", "--checkpoint", checkpoint, "--sequences", "8"}, settings));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(result.out.find("loss"));
  }
  void export_well(const Settings& settings) const {
    const auto result = shoal(with({"export"}, settings));
    EXPECT_EQ(result.code, 0) << result.err;
  }
};

TEST_F(Lora, ResumesAndChangesItsLayoutWithTheSameBytes) {
  train_well(tune({"run.name=whole", "lora.dropout=0.1"}));
  train_well(tune({"run.name=parts", "lora.dropout=0.1", "train.steps=3", "lr_schedule.decay_steps=1000"}));
  train_well(tune({"run.name=parts", "lora.dropout=0.1", "init.from=resume", "--ranks", "4",
                   "parallel.pipeline=2", "parallel.zero=3"}));
  const auto same = shoal({"checkpoint", "compare", "runs/whole/checkpoints/step-00000006",
                           "runs/parts/checkpoints/step-00000006"});
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  expect_user_error_at_the_end(shoal(with({"train", "tiny.toml"}, tune({"run.name=whole", "init.from=resume",
                                                                        "train.steps=7", "lora.rank=3"}))),
                               "lora.rank = 3 (the checkpoint has 2)");
}

TEST_F(Lora, TrainsAdaptersAlone) {
  train_well(tune({"run.name=tuned"}));
  EXPECT_NE(eval_of("runs/tuned"), eval_of("runs/base"));
  export_well({"--checkpoint", "runs/tuned", "--out", "base-of-tuned", "--without-adapters"});
  export_well({"--checkpoint", "runs/base", "--out", "base"});
  EXPECT_TRUE(read_file(file("base-of-tuned/model.safetensors")) ==
              read_file(file("base/model.safetensors")));
}

// Merged weights differ from the adapters beside them by rounding.
TEST_F(Lora, MergesIntoTheWeightsAndOutOfThem) {
  train_well(tune({"run.name=tuned"}));
  export_well({"--checkpoint", "runs/tuned", "--out", "merged"});
  export_well({"--checkpoint", "runs/tuned", "--out", "adapters", "--format", "peft"});
  export_well({"--checkpoint", "runs/base", "--adapter", "adapters", "--out", "merged-later"});
  EXPECT_TRUE(read_file(file("merged/model.safetensors")) ==
              read_file(file("merged-later/model.safetensors")));
  export_well({"--checkpoint", "hf:merged", "--adapter", "adapters", "--unmerge", "--out", "unmerged"});
  const auto loss = [&](const std::string& checkpoint) {
    const auto text =
        eval_of(checkpoint, checkpoint.starts_with("hf:") ? Settings{"data.dir=data"} : Settings{});
    return std::stod(text.substr(text.find_first_of("0123456789")));
  };
  EXPECT_NEAR(loss("hf:merged"), loss("runs/tuned"), 2e-6);
  EXPECT_NEAR(loss("hf:unmerged"), loss("runs/base"), 2e-6);
}

// Merged weights differ from the adapters beside them by rounding.
TEST_F(Lora, ARunWithoutAdaptersStartsFromMergedOnes) {
  train_well(tune({"run.name=tuned"}));
  const auto from = "init.from=checkpoint:runs/tuned";
  const auto loss = [&](const std::string& name) {
    const auto text = eval_of("runs/" + name);
    return std::stod(text.substr(text.find_first_of("0123456789")));
  };
  train_well({"run.name=whole", from, "model.dropout=0", "train.steps=1", "optim.lr=1e-60"});
  EXPECT_NEAR(loss("whole"), loss("tuned"), 2e-6);
  EXPECT_THAT(read_file(file("runs/whole/train.log")), HasSubstr("adapters are merged"));
  train_well(tune({"run.name=on", from, "train.steps=1", "optim.lr=1e-60"}));
  EXPECT_EQ(loss("on"), loss("tuned"));
  expect_user_error_at_the_end(
      shoal(with({"train", "tiny.toml"}, tune({"run.name=other", from, "lora.alpha=8"}))),
      "lora.alpha = 8.0 (the checkpoint has 4.0)");
}

TEST_F(Lora, StartsFromAdaptersOfPeft) {
  train_well(tune({"run.name=tuned"}));
  export_well({"--checkpoint", "runs/tuned", "--out", "adapters", "--format", "peft"});
  train_well(tune({"run.name=again", "lora.from=adapters", "optim.lr=1e-60", "train.steps=1"}));
  EXPECT_EQ(eval_of("runs/again"), eval_of("runs/tuned"));
  expect_user_error_at_the_end(
      shoal(with({"train", "tiny.toml"}, tune({"run.name=other", "lora.from=adapters", "lora.rank=3"}))),
      "lora.rank=2", "attn.c_attn,attn.c_proj,mlp.c_fc,mlp.c_proj");
  fs::remove(file("adapters/adapter_model.safetensors"));
  expect_user_error_at_the_end(
      shoal(with({"train", "tiny.toml"}, tune({"run.name=none", "lora.from=adapters"}))),
      "adapter_model.safetensors is not there");
}

TEST_F(Lora, SamplesWithItsAdapters) {
  train_well(tune({"run.name=tuned"}));
  const Settings text = {"--prompt", "abc", "--max-tokens", "8", "--seed", "3", "--temperature", "0"};
  export_well({"--checkpoint", "runs/tuned", "--out", "merged"});
  const auto apart = shoal(with({"sample", "--checkpoint", "runs/tuned"}, text));
  EXPECT_EQ(apart.code, 0) << apart.err;
  EXPECT_NE(apart.out, "");
}

TEST_F(Lora, IsCountedBySize) {
  const auto size = shoal(with({"size", "tiny.toml"}, kAdapters));
  EXPECT_EQ(size.code, 0) << size.err;
  EXPECT_THAT(size.out, HasSubstr("adapters"));
  EXPECT_THAT(size.out, HasSubstr("trained"));
  EXPECT_THAT(shoal({"size", "tiny.toml"}).out, Not(HasSubstr("trained ")));
}

TEST_F(Lora, RefusesWhatHasNoMeaning) {
  const auto refused = [&](const Settings& settings) {
    return shoal(with({"train", "tiny.toml"}, settings));
  };
  expect_user_error_at_the_end(refused({"lora.alpha=4"}), "lora.alpha = 4", "set lora.rank");
  expect_user_error_at_the_end(refused({"lora.rank=2", "lora.targets=attn"}), "lora.targets has \"attn\"");
  expect_user_error_at_the_end(refused({"optim.frozen=block.7"}), "no unit is called block.7", "block.1");
  expect_user_error_at_the_end(refused({"optim.frozen=*"}), "leaves nothing to train");
  expect_user_error_at_the_end(refused({"lora.rank=2", "lora.from=somewhere"}), "set init.from");
  expect_user_error_at_the_end(
      shoal({"export", "--checkpoint", "runs/base", "--format", "peft", "--out", "x"}), "has no adapters");
}

}  // namespace
}  // namespace shoal::test
