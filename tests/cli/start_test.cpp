// Start, resume and stop of runs, as a user sees them.
#include <fmt/format.h>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Start : public TinyRuns {
 protected:
  // A run that has started and logged `sign`.
  std::unique_ptr<Process> start(const Settings& arguments, const std::string& sign) const {
    auto process = std::make_unique<Process>(arguments, folder_.path());
    EXPECT_TRUE(eventually([&] { return process->err_so_far().find(sign) != std::string::npos; }))
        << process->err_so_far();
    return process;
  }
  std::string log_of(const std::string& name) const { return read_file(file("runs") / name / "train.log"); }
};

using Auto = Start;

TEST_F(Auto, GoesOnWhereThereIsACheckpoint) {
  train_well({"run.name=whole"});
  const Settings settings = {"run.name=foo", "init.from=auto"};
  train_well(with(settings, {"train.steps=10"}));  // no checkpoint yet: starts from scratch
  EXPECT_THAT(log_of("foo"), Not(HasSubstr("resumed")));
  train_well(settings);
  EXPECT_THAT(log_of("foo"), HasSubstr("runs/foo/checkpoints/step-00000010: 10 of 20 steps are done"));
  expect_same("foo", "whole");
  train_well({"run.name=bar", "init.from=auto"});  // another run
  EXPECT_THAT(log_of("bar"), Not(HasSubstr("resumed")));
  expect_same("bar", "whole");
}

TEST_F(Auto, PutsAnAttemptAsideThatSavedNothing) {
  train_well({"run.name=whole"});
  write_file(file("runs/foo/metrics.jsonl"), "{\"step\":1,\"loss\":9}\n");
  train_well({"run.name=foo", "init.from=auto"});
  expect_same("foo", "whole");
  EXPECT_EQ(read_file(file("runs/foo/unsaved-metrics.jsonl")), "{\"step\":1,\"loss\":9}\n");
}

TEST_F(Auto, ElseStartsAsTheConfigSays) {
  train_well({"run.name=first"});
  const std::string from = "checkpoint:runs/first";
  const Settings settings = {"run.name=second", "init.from=" + from, "train.steps=4", "eval.interval=2",
                             "checkpoint.interval=2"};
  const Settings again = with(settings, {"init.from=auto"});
  train_well(again);
  EXPECT_THAT(log_of("second"), AllOf(HasSubstr("parameters from"), Not(HasSubstr("resumed"))));
  train_well(with(again, {"train.steps=6"}));
  EXPECT_THAT(log_of("second"), HasSubstr("runs/second/checkpoints/step-00000004: 4 of 6 steps are done"));
  // Given as one value, and an explicit value takes precedence.
  train_well({"run.name=third", "init.from=auto:" + from, "train.steps=2"});
  EXPECT_THAT(log_of("third"), HasSubstr("parameters from"));
  expect_user_error(train({"run.name=third", "init.from=auto", "init.from=scratch"}), "already holds a run");
  expect_user_error(train({"init.from=auto:nowhere"}), "init.from", "auto:checkpoint:DIR");
  expect_user_error(train({"init.from=resume", "init.from=auto"}), "holds no checkpoint");
}

using Names = Start;

TEST_F(Names, AnEmptyNameIsTheConfigs) {
  train_well({"run.name=", "train.steps=2"});
  EXPECT_TRUE(fs::exists(file("runs/tiny/checkpoints/latest")));
}

using Following = Start;

TEST_F(Following, IsSaidInTheLog) {
  train_well({"train.global_batch=5", "train.steps=3", "lr_schedule.warmup_steps=0"});
  EXPECT_THAT(log_of("tiny"), HasSubstr("train.micro_batch = 1: the config's 2 does not divide"));
  train_well({"run.name=ranks", "--ranks", "3", "train.steps=2"});
  EXPECT_THAT(log_of("ranks"), HasSubstr("too few for 3 data ranks"));
}

using AllRanks = Start;

TEST_F(AllRanks, AreAsManyAsCores) {
  const auto result = shoal({"train", "tiny.toml", "--dry-run", "--ranks", "all", "train.global_batch=4096"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const std::string ranks : {"0", "-1", "two"}) {
    expect_user_error(train({"--ranks", ranks}), "integer, at least 1", "or all");
  }
}

TEST_F(AllRanks, BeyondTheCoresGetANote) {
  const auto ranks = std::to_string(std::thread::hardware_concurrency() + 1);
  train_well({"--ranks", ranks, "train.global_batch=" + ranks, "train.steps=1"});
  EXPECT_THAT(log_of("tiny"), HasSubstr(ranks + " ranks take turns on "));
}

using OtherData = Start;

TEST_F(OtherData, AreRefusedUnlessAllowed) {
  train_well({"train.steps=10"});
  // The dataset is prepared again.
  fs::rename(file("data"), file("before"));
  ASSERT_EQ(shoal({"prepare", "synthetic", "--out", "data", "--size", "20000", "--seed", "5"}).code, 0);
  const auto refused = train({"init.from=resume"});
  expect_user_error_at_the_end(refused, "it was trained on other data",
                               "data/train.bin: ", "tokens, checksum ",
                               "(the checkpoint's data/train.bin: ", "prepared anew", "init.other_data=true");
  // The same data in another folder are accepted.
  train_well({"init.from=resume", "data.dir=before", "train.steps=12"});
  // The error names the other folder.
  expect_user_error_at_the_end(train({"init.from=resume"}), "set data.dir = \"data\" back to \"before\"");
  const auto allowed = train({"init.from=resume", "init.other_data=true", "train.steps=14"});
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_THAT(allowed.err, HasSubstr("resuming on other data than those of the checkpoint"));
  train_well({"init.from=resume"});  // the run keeps the new data
}

TEST_F(OtherData, OfAnotherVocabularyAreNamedByTheirFolder) {
  train_well({"train.steps=2"});
  write_file(file("text.txt"), std::string(20000, 'x') + "abc");
  ASSERT_EQ(shoal({"prepare", "text", "text.txt", "--tokenizer", "bytes", "--val-fraction", "0.1", "--out",
                   "bytes"})
                .code,
            0);
  const auto result = train({"init.from=resume", "data.dir=bytes", "init.other_data=true"});
  expect_user_error_at_the_end(result, "data.dir = \"bytes\" has a vocabulary of ", "trained on \"data\"");
}

using Damaged = Start;

TEST_F(Damaged, TheNewestWholeCheckpointIsNamed) {
  train_well();
  const auto end = final_state("tiny");
  const auto shard = file("runs/tiny/checkpoints/step-00000020/shard-00000-of-00001.safetensors");
  for (const bool truncated : {false, true}) {
    auto bytes = read_file(shard);
    bytes[bytes.size() / 4] ^= 1;
    write_file(shard, truncated ? bytes.substr(1) : bytes);
    const auto result = train({"init.from=resume", "train.steps=30"});
    expect_user_error_at_the_end(
        result, "shard-00000-of-00001.safetensors", "the newest whole checkpoint is step-00000010",
        "mv runs/tiny/checkpoints/step-00000020 runs/tiny/checkpoints/damaged-step-00000020");
  }
  fs::rename(file("runs/tiny/checkpoints/step-00000020"),
             file("runs/tiny/checkpoints/damaged-step-00000020"));
  train_well({"init.from=resume"});
  EXPECT_EQ(final_state("tiny"), end);
}

using Stopping = Start;

TEST_F(Stopping, BeforeTheFirstStep) {
  const Settings slow = train_command({"eval.batches=3000000"});
  const auto process = start(slow, "time: ");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // most likely in the evaluation
  process->signal(SIGINT);
  const auto result = process->wait();
  EXPECT_EQ(result.code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.err, HasSubstr("before step 1; nothing to save"));
  EXPECT_FALSE(fs::exists(file("runs/tiny/checkpoints/latest")));
  train_well();  // the folder has no run
}

// A signal in a very long evaluation after step 10. The resumed run makes this evaluation, now a short one,
// also when it is the last.
TEST_F(Stopping, InAnEvaluationOnTheWay) {
  for (const std::string steps : {"12", "10"}) {
    const Settings length = {"train.steps=" + steps, "eval.at_start=false", "log.interval=1",
                             "eval.interval=10", "eval.batches=2"};
    const Settings name = {"run.name=stopped" + steps}, undisturbed = {"run.name=undisturbed" + steps};
    const auto process =
        start(train_command(with(with(length, name), {"eval.batches=3000000"})), "step 10/" + steps);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    process->signal(SIGTERM);
    const auto result = process->wait();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped by SIGTERM after step 10; everything is saved"));
    train_well(with(with(length, name), {"init.from=resume"}));
    train_well(with(length, undisturbed));
    EXPECT_EQ(final_state("stopped" + steps), final_state("undisturbed" + steps));
    EXPECT_EQ(reproducible_metrics("stopped" + steps), reproducible_metrics("undisturbed" + steps));
    EXPECT_THAT(shoal(train_command(with(with(length, name), {"init.from=resume"}))).err,
                HasSubstr("nothing to do"));
  }
}

TEST_F(Stopping, OfOtherCommands) {
  train_well({"train.steps=1"});
  Process process({"eval", "--checkpoint", "runs/tiny", "--batches", "3000000"}, folder_.path());
  ASSERT_TRUE(eventually([&] { return process.catches(SIGINT); }));
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_THAT(result.err, HasSubstr("shoal: stopped"));
}

// Every config in configs/ can be planned for many ranks. Only those with few sequences need another batch
// for 1,024.
TEST(DryRuns, OfEveryShippedConfig) {
  const TempDir folder;
  const fs::path configs = fs::path(SHOAL_SOURCE_DIR) / "configs";
  const auto dry_run = [&](const fs::path& config, int ranks, std::vector<std::string> settings) {
    std::vector<std::string> arguments = {"train",   config.string(),       "--dry-run",
                                          "--ranks", std::to_string(ranks), "model.vocab_size=50257"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    return run(arguments, folder.path());
  };
  for (const auto& entry : fs::directory_iterator(configs)) {
    const auto config = entry.path();
    if (config.extension() != ".toml") continue;
    const auto text = read_file(config);
    std::vector<std::string> mesh;
    if (text.find("\ndata = 2\n") != std::string::npos) mesh.push_back("parallel.data=0");
    for (const int ranks : {4, 8}) {
      const auto result = dry_run(config, ranks, mesh);
      EXPECT_EQ(result.code, 0) << config << " on " << ranks << ": " << result.err;
    }
    auto result = dry_run(config, 1024, mesh);
    if (result.code == 0) continue;
    // The error suggests a batch.
    const std::string digits = "0123456789";
    std::size_t at = std::string::npos;
    for (const std::string before : {"give the step more: train.global_batch=", "workers; set it to "}) {
      if (const auto found = result.err.find(before); found != std::string::npos) at = found + before.size();
    }
    ASSERT_NE(at, std::string::npos) << config << ": " << result.err;
    const auto batch = result.err.substr(at, result.err.find_first_not_of(digits, at) - at);
    mesh.push_back("train.global_batch=" + batch);
    result = dry_run(config, 1024, mesh);
    EXPECT_EQ(result.code, 0) << config << " with " << mesh.back() << ": " << result.err;
  }
}

}  // namespace
}  // namespace shoal::test
