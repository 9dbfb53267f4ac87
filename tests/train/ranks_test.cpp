// The trainer on several ranks: results that must not depend on them, settings that must agree, and failures.
#include <csignal>
#include <map>
#include <thread>

#include "checkpoint/reader.h"
#include "core/clock.h"
#include "data/dataset.h"
#include "train/model_io.h"
#include "train/saver.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Ranks : public TinyRuns {
 protected:
  void expect_same_run(const std::string& name, const std::string& other) const {
    EXPECT_EQ(tensors(name, 12), tensors(other, 12)) << name << " and " << other;
    EXPECT_EQ(reproducible_metrics(name), reproducible_metrics(other));
  }
};

// Three micro-batches: on two ranks, one rank has a pass without a micro-batch; on three ranks, none has.
const Settings kExact = {"run.deterministic=layout", "model.dropout=0.1"};

TEST_F(Ranks, WithLayoutDeterminismAnyNumberMakesTheSameRun) {
  train("one", kExact);
  for (const int ranks : {2, 3}) {
    for (const std::string zero : {"0", "3"}) {
      const auto name = fmt::format("ranks{}zero{}", ranks, zero);
      train(name, with(kExact, {"parallel.zero=" + zero}), ranks);
      expect_same_run(name, "one");
    }
  }
  EXPECT_THAT(log_of("ranks3zero3"), HasSubstr("ranks: 3 threads of this process, ZeRO stage 3"));
  EXPECT_THAT(log_of("one"), Not(HasSubstr("ranks:")));
}

// The micro-batch is adapted to the ranks, but the evaluated sequences are the same: losses of the same
// weights differ by rounding, at most 5e-5 of their size (TheMicroBatchChangesRoundingOnly).
TEST_F(Ranks, AnEvaluationIsOfTheSameSequencesOnAnyNumber) {
  train("trained", {"train.steps=30", "eval.interval=0"});
  const Settings settings = {"init.from=checkpoint:" + checkpoint("trained", 30).string(),
                             "train.steps=1",
                             "lr_schedule.warmup_steps=0",
                             "train.global_batch=8",
                             "train.micro_batch=0",
                             "eval.sequences=11"};
  std::optional<EvalRecord> alone;
  for (const int ranks : {1, 2, 4}) {
    const auto name = fmt::format("ranks{}", ranks);
    train(name, settings, ranks);
    EXPECT_THAT(log_of(name), HasSubstr(fmt::format("micro-batches of {}", 8 / ranks)));
    const auto found = metrics(name).evals.at(0);
    if (!alone) alone = found;
    EXPECT_NEAR(found.val_loss, alone->val_loss, 5e-5 * alone->val_loss);
    EXPECT_NEAR(found.train_loss, alone->train_loss, 5e-5 * alone->train_loss);
  }
}

// A resume also continues the data, the skipped steps and the window of the spike detector.
TEST_F(Ranks, ARunGoesOnOnAnotherNumber) {
  const auto settings =
      with(kExact, {"data.sampling=epochs", "data.truncate=0.005", "optim.lr=1e-5", "train.spike_zscore=1e-9",
                    "train.spike_window=8", "train.on_bad_step=skip", "train.steps=30"});
  train("one", settings);
  ASSERT_THAT(log_of("one"), HasSubstr("skipped"));
  train("several", with(settings, {"train.steps=12", "parallel.zero=3"}), 3);
  train("several", with(settings, {"train.steps=21", "parallel.zero=1", "init.from=resume"}), 2);
  train("several", with(settings, {"init.from=resume"}));
  EXPECT_EQ(tensors("several", 30), tensors("one", 30));
  EXPECT_EQ(reproducible_metrics("several"), reproducible_metrics("one"));
  const auto skipped = [&](const std::string& name) {
    return train_state_of(CheckpointReader(checkpoint(name, 30))).skipped_steps;
  };
  EXPECT_EQ(skipped("several"), skipped("one"));
}

// Without layout determinism, runs differ by rounding only, within the bound of
// TheMicroBatchChangesRoundingOnly.
TEST_F(Ranks, TheDefaultModeDiffersByRounding) {
  const Settings settings = {"optim.eps=1", "optim.lr=0.1", "model.dropout=0.1", "eval.interval=0",
                             "train.micro_batch=0"};
  train("one", settings);
  const auto one = metrics("one").steps;
  for (const int ranks : {2, 4}) {
    const auto name = std::to_string(ranks);
    train(name, settings, ranks);
    const auto other = metrics(name).steps;
    ASSERT_EQ(other.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      const double share = 5e-5 * static_cast<double>(i + 1);
      EXPECT_NEAR(other[i].loss, one[i].loss, share * one[i].loss) << "step " << i + 1;
      EXPECT_NEAR(other[i].grad_norm, one[i].grad_norm, share * one[i].grad_norm) << "step " << i + 1;
    }
  }
}

// A pipeline, stages cut by hand and shards on disk give the same bytes, and any mesh can resume from
// another's checkpoint.
TEST_F(Ranks, ARunGoesOnInAnotherMesh) {
  const auto settings = with(kExact, {"model.dropout=0.1"});
  train("one", settings);
  train("several", with(settings, {"train.steps=3", "parallel.pipeline=2", "parallel.zero=2"}), 6);
  train("several", with(settings, {"train.steps=9", "init.from=resume", "parallel.zero=3"}), 3);
  train("several",
        with(settings, {"init.from=resume", "parallel.pipeline=2", "parallel.stages=1,1", "parallel.zero=1",
                        "parallel.schedule=gpipe", "parallel.offload=disk"}),
        4);
  expect_same_run("several", "one");
  EXPECT_THAT(log_of("several"),
              HasSubstr("ranks: 6 threads of this process: 2 stages x 3 data ranks, ZeRO"));
  EXPECT_THAT(log_of("several"), HasSubstr("pipeline: gpipe, 2 micro-batches on a data rank, bubble 33.3 %"));
  EXPECT_THAT(log_of("several"), HasSubstr("stage 1: block.1, head"));
}

// The same tensor size gives the same bytes in any mesh; another one differs by rounding, see
// TheDefaultModeDiffersByRounding.
TEST_F(Ranks, TensorRanksTrainTheSameModel) {
  const auto settings = with(kExact, {"optim.eps=1", "optim.lr=0.1", "model.dropout=0.1"});
  train("one", settings);
  train("two", with(settings, {"parallel.tensor=2", "parallel.sequence=true"}), 2);
  train("mesh",
        with(settings,
             {"parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2", "parallel.zero=1"}),
        8);
  expect_same_run("mesh", "two");
  EXPECT_THAT(log_of("mesh"),
              HasSubstr("8 threads of this process: 2 stages x 2 data x 2 tensor ranks with sequence "
                        "parallelism, ZeRO stage 1, sums independent of the rest of the mesh"));
  const auto one = metrics("one"), two = metrics("two");
  ASSERT_EQ(two.steps.size(), one.steps.size());
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    const double share = 5e-5 * static_cast<double>(i + 1);
    EXPECT_NEAR(two.steps[i].loss, one.steps[i].loss, share * one.steps[i].loss) << "step " << i + 1;
    EXPECT_NEAR(two.steps[i].grad_norm, one.steps[i].grad_norm, share * one.steps[i].grad_norm);
  }
  train("sequence", {"parallel.sequence=true", "train.steps=3"});
  EXPECT_THAT(log_of("sequence"), HasSubstr("without tensor ranks there is nothing to share"));
}

TEST_F(Ranks, OnlyTheFirstWritesAndCheckpointsHaveAShardOfEach) {
  train("run", {"train.steps=3"}, 3);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoint("run", 3)))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ElementsAre("manifest.json", "shard-00000-of-00003.safetensors",
                                 "shard-00001-of-00003.safetensors", "shard-00002-of-00003.safetensors"));
  EXPECT_EQ(metrics("run").steps.size(), 3u);
  const auto log = log_of("run");
  EXPECT_EQ(log.find("step 3/3"), log.rfind("step 3/3"));
  // The number of ranks may change.
  EXPECT_EQ(config_of(CheckpointReader(run("run"))).parallel.data, 0);
  EXPECT_EQ(load_config(run("run") / "config.toml").parallel.data, 0);
}

TEST_F(Ranks, StateOnDiskLeavesNothingBehind) {
  train("memory", with(kExact, {"parallel.zero=2"}), 2);
  train("disk", with(kExact, {"parallel.zero=2", "parallel.offload=disk"}), 2);
  expect_same_run("disk", "memory");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run("disk")))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(".lock", "checkpoints", "config.toml", "metrics.jsonl",
                                                     "plan.toml", "train.log"));
  train("host", {"parallel.offload=host", "train.steps=3"});
  EXPECT_THAT(log_of("host"), HasSubstr("memory is the host's already"));
}

TEST_F(Ranks, ABadStepIsNamedOnceAndAlike) {
  const Settings settings = {"optim.lr=1e39", "lr_schedule.warmup_steps=0"};
  const std::pair<int, Settings> layouts[] = {
      {3, {"parallel.zero=0"}},
      {3, {"parallel.zero=3"}},
      {4, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true"}}};
  for (const auto& [ranks, layout] : layouts) {
    const auto error = error_of([&] { train("run" + layout.front(), with(settings, layout), ranks); });
    EXPECT_THAT(error,
                ::testing::StartsWith("step 2: the loss is not finite; micro-batch 1 of 3 (samples 0 to 1"));
    EXPECT_THAT(error, HasSubstr("first tensor that is not finite: "));
    EXPECT_THAT(error,
                Not(HasSubstr("the gradient of")));  // the parameters are bad: skipping steps cannot help
  }
}

TEST_F(Ranks, EpochsSayWhenToEvaluateAndSave) {
  const Settings settings = {"data.sampling=epochs", "data.truncate=0.02",        "train.steps=0",
                             "train.epochs=4",       "lr_schedule.decay_steps=0", "eval.interval=0",
                             "eval.epochs=1",        "checkpoint.interval=0",     "checkpoint.epochs=2",
                             "checkpoint.best=false"};
  train("run", settings, 2);
  const Config given = config("run", settings);
  const Dataset data(given.data.dir, {.truncate = given.data.truncate});
  const std::int64_t windows = (data.train().size() - 1) / 8;
  const auto end_of = [&](std::int64_t epoch) { return (epoch * windows + 5) / 6; };  // its last step
  std::vector<std::int64_t> steps;
  for (const auto& eval : metrics("run").evals) steps.push_back(eval.step);
  EXPECT_THAT(steps, ElementsAre(0, end_of(1), end_of(2), end_of(3), end_of(4)));
  EXPECT_THAT(list_checkpoints(run("run") / kCheckpointsName),
              ElementsAre(checkpoint("run", end_of(2)), checkpoint("run", end_of(4))));
}

// In whichever collective the other ranks wait.
TEST_F(Ranks, OneThatFailsStopsTheOthersSoon) {
  for (const bool started : {false, true}) {
    const Stopwatch watch;
    const auto given = config(started ? "late" : "early", {"checkpoint.interval=1", "train.steps=1000000"});
    EXPECT_EQ(error_of([&] {
                run_threads({.ranks = 3}, [&](World& world) {
                  const bool fails = world.ranks.rank() == 1;
                  if (fails && !started) fail("the machine room is flooded");
                  Trainer trainer(given, world);
                  if (fails) fail("the machine room is flooded");
                  trainer.run();
                });
              }),
              "rank 1: the machine room is flooded");
    EXPECT_LT(watch.seconds(), 5);
  }
}

// When a rank fails during a save, the others must not wait for it: its shard will never exist.
TEST_F(Ranks, OneThatFailsWhileOthersSaveStopsThemSoon) {
  const Stopwatch watch;
  EXPECT_THAT(error_of([&] {
                run_threads({.ranks = 2}, [&](World& world) {
                  Saver saver(world.ranks, run("saves"), {.keep = 1});
                  if (world.ranks.rank() == 1) fail("the power is out");
                  std::vector<std::byte> data(400);
                  const std::vector<SliceView> slices = {{whole_slice("a", DType::f32, {100}), data}};
                  saver.begin({1, "0.1.0", "", {}, {}}, slices, false);
                  saver.settle();
                });
              }),
              "rank 1: the power is out");
  EXPECT_LT(watch.seconds(), 5);
}

// A signal is for the whole process here; the ranks decide together how to react.
TEST_F(Ranks, ASignalStopsAllAfterTheSameStep) {
  const auto given = config("run", with(kExact, {"train.steps=1000000", "eval.interval=0"}));
  std::vector<TrainResult> results(3);
  std::thread sender([&] {
    while (!fs::exists(run("run") / "metrics.jsonl") || fs::file_size(run("run") / "metrics.jsonl") < 2000)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::raise(SIGTERM);
  });
  run_threads({.ranks = 3}, [&](World& world) {
    results[static_cast<std::size_t>(world.ranks.rank())] = Trainer(given, world).run();
  });
  sender.join();
  for (const auto& result : results) {
    EXPECT_TRUE(result.interrupted);
    EXPECT_EQ(result.step, results[0].step);
    EXPECT_EQ(result.train_loss, results[0].train_loss);
  }
  EXPECT_THAT(log_of("run"), HasSubstr(fmt::format("stopped by SIGTERM after step {};", results[0].step)));
  EXPECT_EQ(train_state_of(CheckpointReader(run("run"))).step, results[0].step);
}

TEST_F(Ranks, MistakesAreToldOnceAndLeaveNothing) {
  const auto refused = [&](const Settings& settings, int ranks) {
    return user_error([&] { train("run", settings, ranks); });
  };
  EXPECT_THAT(refused({}, 7), ::testing::StartsWith("7 ranks cannot share the 6 sequences"));
  EXPECT_THAT(refused({"train.micro_batch=2"}, 4),
              ::testing::StartsWith("4 ranks cannot share the 3 micro-batches"));
  EXPECT_THAT(refused({"parallel.tensor=2"}, 3),
              ::testing::StartsWith("parallel.tensor = 2 asks for a multiple of 2 ranks, but 3 are started"));
  EXPECT_THAT(
      refused({"parallel.tensor=3"}, 3),
      ::testing::StartsWith("parallel.tensor = 3 ranks cannot share 2 attention heads; use at most 2"));
  EXPECT_THAT(refused({"data.dir=nowhere"}, 3), ::testing::StartsWith("nowhere: no such data folder"));
  EXPECT_THAT(refused({"run.dir=/proc"}, 3), ::testing::StartsWith("cannot create the run directory"));
  EXPECT_FALSE(fs::exists(run("run")));
  EXPECT_THAT(refused({"init.from=checkpoint:nowhere"}, 3), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace shoal::test
