// Runs in one process: resumes, evaluations and micro-batches do not change a run.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <optional>
#include <thread>

#include "checkpoint/reader.h"
#include "train/model_io.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Variant {
  std::string name;
  Settings settings;
  std::string logged = "resumed from ";  // in the log of the second part
  friend void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }
};

class Resume : public TinyRuns, public ::testing::WithParamInterface<Variant> {};

TEST_P(Resume, IsExact) {
  const auto& settings = GetParam().settings;
  train("whole", settings);
  train("parts", with(settings, {"train.steps=6"}));
  train("parts", with(settings, {"init.from=resume"}));
  EXPECT_EQ(state("parts", 12), state("whole", 12));
  EXPECT_EQ(reproducible_metrics("parts"), reproducible_metrics("whole"));
  EXPECT_NE(state("whole", 12), state("whole", 6));
  EXPECT_THAT(log_of("parts"), HasSubstr(GetParam().logged));
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Resume,
    ::testing::Values(
        Variant{"Float32", {}}, Variant{"Bfloat16", {"train.dtype=bfloat16"}},
        Variant{"Dropout", {"model.dropout=0.1", "train.recompute=block"}},
        Variant{"Epochs", {"data.sampling=epochs", "data.truncate=0.005", "model.bias=false"}},
        Variant{"Stride", {"data.sampling=epochs", "data.truncate=0.002", "data.stride=3"}},
        Variant{
            "Everything",
            {"train.dtype=bfloat16", "train.residual_dtype=bfloat16", "train.gradient_dtype=bfloat16",
             "model.dropout=0.1", "data.sampling=epochs", "data.truncate=0.005", "train.recompute=block",
             "model.gelu=erf", "train.spike_zscore=0.5", "train.spike_window=8", "train.on_bad_step=skip"}},
        Variant{
            "Spikes",
            {"optim.lr=1e-5", "train.spike_zscore=1e-9", "train.spike_window=8", "train.on_bad_step=skip"},
            "skipped"},  // by a window that began before the stop
        // The stop is in the middle of a window.
        Variant{"AccumAdamW", {"optim.name=accum_adamw", "optim.accum_steps=4"}},
        Variant{"AccumAdam", {"optim.name=accum_adam", "optim.accum_steps=5", "train.backend=reference"}},
        Variant{"Muon", {"optim.name=muon", "optim.matrix_lr=0.002", "train.dtype=bfloat16"}},
        Variant{"MovingAverage", {"optim.ema=0.9", "train.dtype=bfloat16"}},
        // The stop is in the middle of an interval, while a movement is under way.
        Variant{"Outer", {"outer.interval=4", "optim.name=muon"}},
        Variant{"OuterStreaming", {"outer.interval=5", "outer.overlap=5", "outer.compress=topk:0.05"}},
        Variant{"Reference", {"train.backend=reference", "model.dropout=0.1"}}),
    [](const auto& variant) { return variant.param.name; });

using Trainers = TinyRuns;

// The variants above with epochs rely on several new orders within the run.
TEST_F(Trainers, TheResumedEpochsAreSeveral) {
  const Config given = config("any", {"data.sampling=epochs", "data.truncate=0.005"});
  Dataset data(given.data.dir, {.truncate = given.data.truncate});
  EXPECT_GT(12 * given.train.global_batch, 3 * (data.train().size() / given.model.block_size));
}

TEST_F(Trainers, ResumeMayBeRepeatedAtTheEndAndContinuedPastIt) {
  train("whole", {"train.steps=9"});
  const auto before = state("whole", 9);
  EXPECT_EQ(train("whole", {"train.steps=9", "init.from=resume"}).step, 9);
  EXPECT_THAT(log_of("whole"), HasSubstr("nothing to do"));
  EXPECT_EQ(state("whole", 9), before);
  EXPECT_EQ(train("whole", {"train.steps=10", "init.from=resume"}).step, 10);
}

// A resume and an evaluation must be able to read each schedule, including its derived values.
TEST_F(Trainers, EveryScheduleCanBeResumed) {
  for (const std::string name : {"cosine", "linear", "wsd", "constant"}) {
    for (const std::string warmup : {"0", "12"}) {
      const Settings settings = {"lr_schedule.name=" + name, "lr_schedule.warmup_steps=" + warmup,
                                 "lr_schedule.decay_steps=0", "eval.interval=0"};
      const auto run_name = name + warmup;
      train(run_name, settings);
      EXPECT_EQ(train(run_name, with(settings, {"init.from=resume", "train.steps=13"})).step, 13);
      const auto self = make_self_communicator();
      EXPECT_EQ(load_model(run(run_name), load_model_config(run(run_name)), *self, {.threads = 1},
                           Runtime::Use::parameters)
                    .step,
                13);
    }
  }
}

TEST_F(Trainers, EvaluationsAndCheckpointsDoNotChangeTheRun) {
  const Settings settings = {"model.dropout=0.1", "train.dtype=bfloat16"};
  train("often", with(settings, {"eval.interval=1", "checkpoint.interval=1"}));
  train("never", with(settings, {"eval.interval=-1", "checkpoint.interval=0"}));
  EXPECT_EQ(state("often", 12), state("never", 12));
}

// A step's mean loss is the same sum for all sizes of micro-batches, up to rounding: about a dozen float32
// products of length at most 4 * n_embd = 64 differ by at most 12 * 64 * 2^-24 < 5e-5 of their size. With eps
// = 1, an AdamW update is Lipschitz in the gradient with constant lr, so that each earlier step can add as
// much again.
TEST_F(Trainers, TheMicroBatchChangesRoundingOnly) {
  const Settings settings = {"optim.eps=1", "optim.lr=0.1", "model.dropout=0.1", "eval.interval=0"};
  train("one", with(settings, {"train.micro_batch=1"}));
  const auto one = metrics("one").steps;
  ASSERT_EQ(one.size(), 12u);
  EXPECT_LT(one.back().loss, one.front().loss - 0.01);  // updates are larger than rounding
  for (const std::string size : {"2", "3", "6"}) {
    train(size, with(settings, {"train.micro_batch=" + size}));
    const auto other = metrics(size).steps;
    ASSERT_EQ(other.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      const double share = 5e-5 * static_cast<double>(i + 1);
      EXPECT_NEAR(other[i].loss, one[i].loss, share * one[i].loss) << "step " << i + 1;
      EXPECT_NEAR(other[i].grad_norm, one[i].grad_norm, share * one[i].grad_norm) << "step " << i + 1;
    }
  }
}

TEST_F(Trainers, StartsFromTheParametersOfACheckpoint) {
  train("first");
  const auto from = "init.from=checkpoint:" + checkpoint("first", 6).string();
  const auto second = train("second", {from, "train.steps=1", "lr_schedule.warmup_steps=0"});
  EXPECT_EQ(second.step, 1);
  const auto then = metrics("first").evals[2], now = metrics("second").evals[0];
  ASSERT_EQ(then.step, 6);
  ASSERT_EQ(now.step, 0);
  EXPECT_EQ(now.val_loss, then.val_loss);
  EXPECT_EQ(now.train_loss, then.train_loss);
  // The moments are new: after one step, m is (1 - beta1) times a gradient.
  EXPECT_NE(state("second", 1), state("first", 6));
}

// Whether its tensors' shapes tell, as with n_embd, or not.
TEST_F(Trainers, ACheckpointOfAnotherModelIsNoStart) {
  train("first", {"train.steps=3"});
  const auto from = "init.from=checkpoint:" + checkpoint("first", 3).string();
  const std::pair<const char*, const char*> cases[] = {
      {"model.n_embd=32", "model.n_embd = 32 (the checkpoint has 16)"},
      {"model.n_layer=1", "model.n_layer = 1 (the checkpoint has 2)"},
      {"model.n_head=4", "model.n_head = 4 (the checkpoint has 2)"},
      {"model.block_size=4", "model.block_size = 4 (the checkpoint has 8)"},
      {"model.bias=false", "model.bias = false (the checkpoint has true)"},
      {"model.gelu=erf", "model.gelu = \"erf\" (the checkpoint has \"tanh\")"},
      {"model.tie_embeddings=false", "model.tie_embeddings = false (the checkpoint has true)"}};
  for (const auto& [setting, fault] : cases) {
    EXPECT_THAT(error_of([&] { train("second", {from, setting}); }), HasSubstr(fault));
  }
}

TEST_F(Trainers, EpochsBecomeSteps) {
  const Settings settings = {"data.sampling=epochs", "data.truncate=0.02", "train.steps=0", "train.epochs=2",
                             "lr_schedule.decay_steps=0"};
  const Config given = config("run", settings);
  Dataset data(given.data.dir, {.truncate = given.data.truncate});
  const auto windows = (data.train().size() - 1) / 8;
  EXPECT_EQ(train("run", settings).step, (2 * windows + 5) / 6);
  EXPECT_THAT(
      user_error([&] { train("long", with(settings, {"lr_schedule.warmup_steps=1000000"})); }),
      AllOf(HasSubstr("lr_schedule.warmup_steps = 1000000 is longer"), HasSubstr("(train.epochs = 2)")));
}

// Six sequences of eight tokens a step.
TEST_F(Trainers, AnErrorOfALengthNamesTheKeyInTokens) {
  const Settings none = {"lr_schedule.warmup_steps=0", "lr_schedule.decay_steps=0"};
  const auto refused = [&](const Settings& tokens) {
    return user_error([&] { train("run", with(none, tokens)); });
  };
  EXPECT_EQ(refused({"lr_schedule.warmup_tokens=4800"}),
            "lr_schedule.warmup_steps = 100 (lr_schedule.warmup_tokens = 4800) is longer than the run, "
            "train.steps = 12; lower it");
  EXPECT_THAT(refused({"lr_schedule.warmup_tokens=480", "lr_schedule.decay_tokens=240"}),
              HasSubstr("lr_schedule.decay_steps = 5 (lr_schedule.decay_tokens = 240) ends before"));
}

TEST_F(Trainers, AStrideMakesMoreSequencesOfAnEpochAndStaysWithTheRun) {
  const Settings settings = {"data.sampling=epochs", "data.truncate=0.002",       "train.steps=0",
                             "train.epochs=1",       "lr_schedule.decay_steps=0", "data.stride=1"};
  const Config given = config("run", settings);
  Dataset data(given.data.dir, {.truncate = given.data.truncate});
  EXPECT_EQ(train("run", settings).step, (data.train().size() - 8 + 5) / 6);
  const auto resume = [&](const std::string& stride) {
    return with(settings, {"init.from=resume", "data.stride=" + stride});
  };
  EXPECT_THAT(user_error([&] { train("run", resume("2")); }),
              HasSubstr("data.stride = 2 (the checkpoint has 1)"));

  const Settings disjoint = {"data.sampling=epochs", "train.steps=2"};
  train("disjoint", disjoint);
  const Settings more = {"init.from=resume", "train.steps=4"};
  EXPECT_THAT(user_error([&] { train("disjoint", with(with(disjoint, more), {"data.stride=7"})); }),
              HasSubstr("data.stride = 7 (the checkpoint has 8)"));
  EXPECT_EQ(train("disjoint", with(with(disjoint, more), {"data.stride=8"})).step, 4);  // as it was
}

TEST_F(Trainers, TheResultIsWhatTheMetricsSay) {
  const auto result = train("run");
  const auto measured = metrics("run");
  EXPECT_EQ(result.step, 12);
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.train_loss, measured.steps.back().loss);
  EXPECT_EQ(result.val_loss, measured.evals.back().val_loss);
  EXPECT_EQ(measured.evals.size(), 5u);  // 0, 3, 6, 9, 12
  EXPECT_EQ(measured.steps.back().tokens, 12 * 6 * 8);
  EXPECT_THAT(
      log_of("run"),
      HasSubstr(fmt::format(
          "Step 12, Val loss: {:.6f}, Train loss: {:.6f}, Val perplexity: {:.4f}, Val accuracy: {:.2f} %, "
          "Train time: ",
          measured.evals.back().val_loss, measured.evals.back().train_loss,
          std::exp(measured.evals.back().val_loss), measured.evals.back().val_accuracy.value() * 100)));
  const auto log = log_of("run");
  const auto first =
      log.substr(log.find("Step 0, "), log.find('\n', log.find("Step 0, ")) - log.find("Step 0, "));
  EXPECT_THAT(first, ::testing::EndsWith(" %"));  // before any step there is no train time
  EXPECT_THAT(log_of("run"), HasSubstr("done: 12 steps in "));
}

TEST_F(Trainers, SpeedsAreSharesOfTheGivenPeakOfAllRanks) {
  train("one", {"log.peak_tflops=2"});
  train("two", {"log.peak_tflops=1", "train.micro_batch=1"}, 2);
  const auto flops = [&](const StepRecord& record) {
    return record.peak_share * 2e12 * record.ms_per_step / 1e3;
  };
  const double expected = flops(metrics("one").steps[0]);
  EXPECT_GT(expected, 0);
  for (const auto& name : {"one", "two"}) {
    for (const auto& record : metrics(name).steps) EXPECT_NEAR(flops(record), expected, 1e-4 * expected);
  }
  train("slow", {"log.peak_tflops=1e-9"});
  EXPECT_EQ(metrics("slow").steps.back().peak_share, 0);
  EXPECT_THAT(log_of("slow"), HasSubstr("the peak that log.peak_tflops gives"));
}

// With a learning rate that is 0 in float32, no evaluation is better than the first.
TEST_F(Trainers, TheStartOfARunMayBeItsBest) {
  const Settings still = {"optim.lr=1e-60", "checkpoint.keep=1"};
  const auto best = [&](const std::string& name) {
    return fs::read_symlink(run(name) / kCheckpointsName / kBestName).filename().string();
  };
  train("run", with(still, {"train.steps=6"}));
  EXPECT_EQ(best("run"), step_directory_name(0));
  train("run", with(still, {"init.from=resume"}));
  EXPECT_EQ(best("run"), step_directory_name(0));
  EXPECT_THAT(list_checkpoints(run("run") / kCheckpointsName),
              ::testing::ElementsAre(checkpoint("run", 0), checkpoint("run", 12)));
  const auto evals = metrics("run").evals;
  EXPECT_EQ(train_state_of(CheckpointReader(run("run"))).best_val_loss, evals[0].val_loss);
  EXPECT_EQ(train_state_of(CheckpointReader(checkpoint("run", 0))).best_val_loss, evals[0].val_loss);
  EXPECT_THAT(log_of("run"), HasSubstr(fmt::format("best val loss {:.4f}", evals[0].val_loss)));
  // The best checkpoint is the one to return to.
  train("again",
        with(still, {"train.steps=3", "init.from=checkpoint:" + (run("run") / "checkpoints/best").string()}));
  EXPECT_EQ(metrics("again").evals[0].val_loss, evals[0].val_loss);
}

// A loss counts as the best only where it has a checkpoint.
TEST_F(Trainers, ARunWithoutABestCheckpointSavesTheNextOneWhenItGoesOn) {
  const Settings still = {"optim.lr=1e-60"};
  train("run", with(still, {"train.steps=6", "checkpoint.best=false"}));
  EXPECT_FALSE(fs::exists(checkpoint("run", 0)));
  EXPECT_FALSE(fs::is_symlink(run("run") / kCheckpointsName / kBestName));
  train("run", with(still, {"init.from=resume"}));
  EXPECT_EQ(fs::read_symlink(run("run") / kCheckpointsName / kBestName), checkpoint("run", 9).filename());
}

// The process died between the two links.
TEST_F(Trainers, ACheckpointThatWasSavedAsTheBestIsNamedSoWhereTheProcessDiedBefore) {
  const auto best = run("run") / kCheckpointsName / kBestName;
  train("run", {"train.steps=6"});
  ASSERT_EQ(fs::read_symlink(best), checkpoint("run", 6).filename());
  fs::remove(best);
  fs::create_symlink(checkpoint("run", 3).filename(), best);
  train("run", {"optim.lr=1e-60", "train.steps=9", "init.from=resume"});  // the parameters stay
  EXPECT_EQ(metrics("run").evals.back().val_loss, metrics("run").evals[2].val_loss);
  EXPECT_EQ(fs::read_symlink(best), checkpoint("run", 6).filename());
}

// The save of step 60 fails, as there is a file in the way of its folder. The parameters stay as they are.
TEST_F(Trainers, WhereTheSaveOfTheBestFailsTheNextIsTheBest) {
  const auto given = config("run", {"eval.at_start=false", "eval.interval=60", "train.steps=120",
                                    "checkpoint.interval=0", "optim.lr=1e-60"});
  const auto place = run("run") / kCheckpointsName;
  const auto failed = [&] { return log_of("run").find("could not be saved") != std::string::npos; };
  run_threads({.ranks = 1}, [&](World& world) {
    int steps = 0;
    Trainer(given, world, nullptr, [&] {
      if (++steps == 60) fs::rename(place, folder_ / "aside"), std::ofstream(place) << "a file";
      if (steps <= 60 || fs::is_directory(place)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (failed()) fs::remove(place), fs::rename(folder_ / "aside", place);
    }).run();
  });
  EXPECT_TRUE(failed());
  EXPECT_EQ(fs::read_symlink(place / kBestName), checkpoint("run", 120).filename());
}

TEST_F(Trainers, AnIntervalOf0EvaluatesAtTheEndAndOneBelowNever) {
  const auto steps = [&](const std::string& name) {
    std::vector<std::int64_t> found;
    for (const auto& eval : metrics(name).evals) found.push_back(eval.step);
    return found;
  };
  const auto end = train("end", {"eval.interval=0"});
  ASSERT_THAT(steps("end"), ::testing::ElementsAre(12));
  EXPECT_EQ(end.val_loss, metrics("end").evals[0].val_loss);
  EXPECT_THAT(log_of("end"), HasSubstr(fmt::format(", best val loss {:.4f}; the run is in", end.val_loss)));
  EXPECT_EQ(fs::read_symlink(run("end") / kCheckpointsName / kBestName), checkpoint("end", 12).filename());

  train("never", {"eval.interval=-1"});
  EXPECT_THAT(steps("never"), ::testing::IsEmpty());
  EXPECT_THAT(log_of("never"), ::testing::ContainsRegex("done: 12 steps in [^,]*; the run is in"));
}

// The final model is evaluated on the whole test split, which is here equal to the val split.
TEST_F(Trainers, TheTestSplitIsEvaluatedAtTheEnd) {
  TempFolder data;
  std::vector<std::uint16_t> ids(400);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * i % 13);
  data.write_ids("train.bin", ids);
  ids.resize(80);
  data.write_ids("val.bin", ids);
  data.write_ids("test.bin", ids);
  const Settings settings = {"data.dir=" + data.path().string(), "model.vocab_size=13", "eval.batches=0",
                             "log.tensorboard=true"};
  train("parts", with(settings, {"train.steps=6"}));
  EXPECT_EQ(metrics("parts").test.value().step, 6);
  train("parts", with(settings, {"init.from=resume"}));
  const auto measured = metrics("parts");
  const auto& last = measured.evals.back();
  ASSERT_TRUE(measured.test);
  EXPECT_EQ(measured.test->step, 12);
  EXPECT_EQ(measured.test->loss, last.val_loss);
  EXPECT_EQ(measured.test->accuracy, last.val_accuracy);
  EXPECT_THAT(log_of("parts"), HasSubstr(fmt::format(
                                   "Step 12, Test loss: {:.6f}, Test perplexity: {:.4f}, Test "
                                   "accuracy: {:.2f} %\n",
                                   last.val_loss, std::exp(last.val_loss), last.val_accuracy.value() * 100)));
  // A resumed run drops the test of its earlier end, so that its metrics equal those of a run without a stop.
  train("whole", settings);
  EXPECT_EQ(reproducible_metrics("parts"), reproducible_metrics("whole"));
  // A complete run has nothing to do and keeps its files.
  train("whole", with(settings, {"init.from=resume"}));
  EXPECT_EQ(reproducible_metrics("parts"), reproducible_metrics("whole"));
  // The process ended in the evaluation, as far as its metrics tell.
  const auto records = read_file(run("whole") / "metrics.jsonl");
  std::ofstream(run("whole") / "metrics.jsonl")
      << records.substr(0, records.rfind("{\"step\":12,\"test_loss"));
  ASSERT_FALSE(metrics("whole").test);
  train("whole", with(settings, {"init.from=resume"}));
  EXPECT_EQ(read_file(run("whole") / "metrics.jsonl"), records);
  EXPECT_THAT(log_of("whole"), HasSubstr("what is left is the evaluation of the test split"));
  train("untested", with(settings, {"eval.interval=-1"}));
  EXPECT_FALSE(metrics("untested").test);

  ids.resize(1);  // no target
  data.write_ids("test.bin", ids);
  train("tiny", settings);
  EXPECT_FALSE(metrics("tiny").test);
}

// The model memorises a train split of 36 tokens, so the val loss first falls and then rises.
TEST_F(Trainers, StopEarlyWhereTheValLossNoLongerFalls) {
  const Settings settings = {"train.steps=200", "data.truncate=0.002", "eval.interval=2", "eval.batches=0",
                             "eval.patience=4"};
  train("whole", settings);
  const auto evals = metrics("whole").evals;
  const auto best = std::ranges::min_element(evals, {}, &EvalRecord::val_loss);
  EXPECT_EQ(evals.end() - best, 5) << "the best and four after it";
  EXPECT_LT(evals.back().step, 200);
  EXPECT_THAT(log_of("whole"), HasSubstr("stopped early: 4 evaluations in a row"));
  // A resumed run counts on, and one that has stopped early has nothing to do until it may go further.
  train("parts", with(settings, {"train.steps=" + std::to_string(evals.back().step - 4)}));
  train("parts", with(settings, {"init.from=resume"}));
  EXPECT_EQ(metrics("parts").evals.back().step, evals.back().step);
  train("parts", with(settings, {"init.from=resume"}));
  EXPECT_EQ(metrics("parts").steps.back().step, evals.back().step);
  train("parts", with(settings, {"init.from=resume", "eval.patience=5"}));
  EXPECT_GT(metrics("parts").steps.back().step, evals.back().step);
  EXPECT_THAT(error_of([&] { train("never", with(settings, {"eval.interval=0"})); }),
              HasSubstr("eval.interval"));
}

// Losses of other validation data, or of a mixture with other weights, are not compared.
TEST_F(Trainers, OtherValidationDataHaveABestOfTheirOwn) {
  const TempFolder data;
  std::vector<std::uint16_t> easy(400, 1), hard(400);
  for (std::size_t i = 0; i < hard.size(); ++i) hard[i] = static_cast<std::uint16_t>(i * i % 13);
  for (const auto& [name, ids] : {std::pair{"easy", easy}, {"hard", hard}}) {
    fs::create_directory(data / name);
    for (const char* split : {"/train.bin", "/val.bin"}) data.write_ids(std::string(name) + split, ids);
  }
  const auto folder = data.path().string();
  const auto mixture = [&](int of_easy, int of_hard) {
    return fmt::format(R"(data.dirs={{"{0}/easy" = {1}, "{0}/hard" = {2}}})", folder, of_easy, of_hard);
  };
  const std::vector<std::pair<Settings, Settings>> changes = {
      {{mixture(9, 1)}, {mixture(1, 9)}},
      {{"data.dir=" + folder + "/easy"}, {"data.dir=" + folder + "/hard", "init.other_data=true"}}};
  for (const auto& [before, after] : changes) {
    const std::string name = before == changes[0].first ? "mixed" : "moved";
    const auto go_on = with(after, {"model.vocab_size=13", "init.from=resume"});
    train(name, with(before, {"model.vocab_size=13"}));
    train(name, with(go_on, {"train.steps=14", "eval.interval=-1"}));
    train(name, with(go_on, {"train.steps=24", "eval.patience=3"}));
    EXPECT_EQ(metrics(name).evals.back().step, 24);
    EXPECT_GT(step_of(fs::canonical(run(name) / kCheckpointsName / kBestName)), 14);
  }
}

// So the best checkpoint is an early one.
TEST_F(Trainers, TheNewestAndTheBestCheckpointsAreKept) {
  train("run", {"train.steps=60", "data.truncate=0.002", "checkpoint.keep=2", "checkpoint.interval=4",
                "eval.interval=4", "eval.batches=0"});
  const auto evals = metrics("run").evals;
  const auto best = std::ranges::min_element(evals, {}, &EvalRecord::val_loss);
  ASSERT_LT(best->step, 56);
  EXPECT_THAT(
      list_checkpoints(run("run") / kCheckpointsName),
      ::testing::ElementsAre(checkpoint("run", best->step), checkpoint("run", 56), checkpoint("run", 60)));
  EXPECT_EQ(fs::read_symlink(run("run") / kCheckpointsName / kBestName),
            checkpoint("run", best->step).filename());
  EXPECT_EQ(fs::read_symlink(run("run") / kCheckpointsName / kLatestName), checkpoint("run", 60).filename());
  EXPECT_EQ(train_state_of(CheckpointReader(run("run"))).best_val_loss, best->val_loss);
}

// The same weights, evaluated before the first step of runs with different micro-batches. Other sequences
// would differ by far more than the rounding of 5e-5 derived above.
TEST_F(Trainers, TheMicroBatchDoesNotChangeAnEvaluation) {
  train("trained", {"train.steps=30", "eval.interval=0"});
  const auto from = "init.from=checkpoint:" + checkpoint("trained", 30).string();
  for (const std::string size : {"eval.sequences=5", "eval.batches=0", "eval.batches=1"}) {
    std::optional<EvalRecord> expected;
    for (const std::string micro_batch : {"1", "2", "6"}) {
      const auto name = size + "-" + micro_batch;
      train(name, {from, size, "train.micro_batch=" + micro_batch, "train.steps=1",
                   "lr_schedule.warmup_steps=0", "checkpoint.best=false"});
      const auto found = metrics(name).evals.at(0);
      if (!expected) expected = found;
      EXPECT_NEAR(found.val_loss, expected->val_loss, 5e-5 * expected->val_loss) << name;
      EXPECT_NEAR(found.train_loss, expected->train_loss, 5e-5 * expected->train_loss) << name;
    }
  }
}

// Evaluates a val split with fewer sequences than a micro-batch, and the train split.
TEST_F(Trainers, TheTrainSplitIsEvaluatedOnAsManySequencesAsTheValSplit) {
  TempFolder data;
  std::vector<std::uint16_t> ids(400);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * i % 13);
  data.write_ids("train.bin", ids);
  const Settings settings = {
      "data.dir=" + data.path().string(), "model.vocab_size=13", "eval.batches=0",
      "lr_schedule.warmup_steps=0",       "train.steps=1",       "checkpoint.best=false"};
  // 26 targets: four sequences of 8, the last with two targets.
  data.write_ids("val.bin", std::vector(ids.begin(), ids.begin() + 27));
  train("several", settings);
  // The first four sequences of the train split contain the val split and six more targets.
  const auto several = metrics("several").evals.at(0);
  EXPECT_NE(several.train_loss, several.val_loss);
  // 32 targets: the same four sequences.
  data.write_ids("val.bin", std::vector(ids.begin(), ids.begin() + 33));
  for (const std::string size : {"1", "2", "3", "6"}) {
    const auto name = "micro-batch-" + size;
    train(name, with(settings, {"train.micro_batch=" + size}));
    const auto evaluated = metrics(name).evals.at(0);
    EXPECT_EQ(evaluated.train_loss, evaluated.val_loss) << name;
  }
}

// Tensors that are kept beside parameters cannot come or go.
TEST_F(Trainers, AResumeKeepsTheTensorsOfTheOptimizers) {
  train("run", {"train.steps=6", "outer.interval=4"});
  const auto refused = [&](const Settings& settings) {
    return error_of([&] { train("run", with(settings, {"init.from=resume"})); });
  };
  EXPECT_THAT(refused({}), HasSubstr("outer.interval = 0 (the checkpoint has 4)"));
  EXPECT_THAT(refused({"outer.interval=4", "optim.ema=0.9"}),
              HasSubstr("optim.ema = 0.9 (the checkpoint has 0.0)"));
  EXPECT_THAT(refused({"outer.interval=4", "outer.compress=bfloat16"}),
              HasSubstr("outer.compress = \"bfloat16\" (the checkpoint has \"none\")"));
  train("run", {"outer.interval=3", "init.from=resume"});
}

TEST_F(Trainers, AResumeKeepsTheBatchThatLengthsInTokensWereCountedWith) {
  const Settings counted = {"lr_schedule.warmup_steps=0", "lr_schedule.warmup_tokens=100"};
  train("run", with(counted, {"train.steps=6"}));
  EXPECT_THAT(error_of([&] {
                train("run", with(counted, {"init.from=resume", "train.global_batch=12"}));
              }),
              HasSubstr("train.global_batch = 12 (the checkpoint has 6)"));
}

// A decay to the run's last step, also where the run goes on from its own config.
TEST_F(Trainers, ADecayToTheEndFollowsALongerRun) {
  for (const std::string shape : {"cosine", "wsd"}) {
    const Settings given = {"lr_schedule.name=" + shape, "lr_schedule.decay_steps=0"};
    for (const auto& name : {shape, shape + "-own"}) train(name, with(given, {"train.steps=6"}));
    train(shape, with(given, {"init.from=resume"}));
    const Settings longer = {"init.from=resume", "train.steps=12"};
    run_trainer(load_config(run(shape + "-own") / "config.toml", longer));
    EXPECT_EQ(reproducible_metrics(shape + "-own"), reproducible_metrics(shape));
    EXPECT_GT(metrics(shape).steps.at(8).lr, 0);
  }
}

TEST_F(Trainers, ARunThatIsCutToWhereItStandsIsEvaluatedThere) {
  const auto given = config("run", {"eval.interval=5", "checkpoint.interval=0"});
  run_threads({.ranks = 1}, [&](World& world) {
    int step = 0;
    const auto before_step = [&] {
      if (++step == 9) std::raise(SIGTERM);
    };
    EXPECT_TRUE(Trainer(given, world, nullptr, before_step).run().interrupted);
  });
  EXPECT_EQ(metrics("run").evals.back().step, 5);
  train("run", {"eval.interval=5", "checkpoint.interval=0", "train.steps=9", "init.from=resume"});
  EXPECT_EQ(metrics("run").evals.back().step, 9);
}

// A step without an update counts for the moving average alike, whoever leaves it out.
TEST_F(Trainers, ABadStepIsTheSameWithASpikeDetector) {
  const Settings bad = {"optim.ema=0.5", "train.on_bad_step=skip", "optim.lr=1e18", "train.steps=6",
                        "lr_schedule.warmup_steps=0"};
  train("without", bad);
  train("with", with(bad, {"train.spike_zscore=1e9"}));
  EXPECT_THAT(log_of("without"), HasSubstr("; skipped"));
  EXPECT_EQ(tensors("with", 6), tensors("without", 6));
}

TEST_F(Trainers, ABadStepNamesItsTensorWithAnOuterOptimizerToo) {
  const Settings bad = {"optim.lr=1e39", "lr_schedule.warmup_steps=0"};
  const auto alone = error_of([&] { train("alone", bad); });
  EXPECT_THAT(alone, HasSubstr("first tensor that is not finite: "));
  const auto outer = error_of([&] { train("outer", with(bad, {"outer.interval=1"})); });
  EXPECT_THAT(outer, HasSubstr("first tensor that is not finite: "));
}

TEST_F(Trainers, TheFolderThatARunWasStartedInMayBeRemoved) {
  const auto given = config("run");
  const auto here = fs::current_path(), gone = folder_ / "gone";
  fs::create_directory(gone);
  fs::current_path(gone);
  run_threads({.ranks = 1},
              [&](World& world) { Trainer(given, world, nullptr, [&] { fs::remove(gone); }).run(); });
  fs::current_path(here);
  EXPECT_TRUE(fs::exists(checkpoint("run", 12)));
}

TEST_F(Trainers, SizesThatOverflowAreRefused) {
  for (const std::string layers : {"600", "1000"}) {
    EXPECT_THAT(user_error([&] {
                  train("absurd", {"train.global_batch=2000000000", "train.micro_batch=2000000000",
                                   "model.n_embd=1048576", "model.n_layer=" + layers});
                }),
                HasSubstr("memory"));
  }
  EXPECT_FALSE(fs::exists(run("absurd")));
}

}  // namespace
}  // namespace shoal::test
