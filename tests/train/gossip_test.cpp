// Gossip runs: a resume, an evaluation and the layout change nothing; and the messages of such runs.
#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/worker_source.h"
#include "core/clock.h"
#include "train/model_io.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Not;

// Ten steps; the first half ends inside a period of the topologies.
const Settings kGossip = {"parallel.engine=gossip", "train.global_batch=8",  "train.micro_batch=1",
                          "train.steps=10",         "eval.interval=5",       "checkpoint.interval=5",
                          "model.dropout=0.1",      "gossip.bucket_mib=0.01"};

class Gossip : public TinyRuns {
 protected:
  TrainResult train_workers(const std::string& name, int ranks, const Settings& settings = {}) const {
    return train(name, with(kGossip, settings), ranks);
  }
  std::vector<std::int64_t> logged_steps(const std::string& name) const {
    std::vector<std::int64_t> steps;
    for (const auto& record : metrics(name).steps) steps.push_back(record.step);
    return steps;
  }
  // Per worker.
  std::vector<int> skipped_steps(const std::string& name, std::int64_t step) const {
    const CheckpointReader reader(checkpoint(name, step));
    std::vector<int> skipped;
    for (const auto& state : reader.info().state.at(kWorkerStatesField))
      skipped.push_back(state["skipped_steps"]);
    return skipped;
  }
  // A parameter of a worker at the end, or the mean over all workers.
  std::vector<float> parameter(const std::string& name, std::int64_t step, int worker,
                               const std::string& tensor = "transformer.h.1.mlp.c_fc.weight") const {
    CheckpointReader reader(checkpoint(name, step));
    WorkerSource source(reader, worker);
    std::vector<float> values(16 * 64);
    source.read(whole_slice(tensor, DType::f32, {64, 16}), std::as_writable_bytes(std::span(values)));
    return values;
  }
};

struct Case {
  std::string name;
  int ranks;
  Settings settings;
  int stop = 5, steps = 10;
  bool skips = false;  // a worker skips a step before the stop
  friend void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }
};

class GossipResume : public Gossip, public ::testing::WithParamInterface<Case> {};

TEST_P(GossipResume, IsExact) {
  const auto& [name, ranks, given, stop, steps, skips] = GetParam();
  const auto settings = with(given, {fmt::format("train.steps={}", steps)});
  train_workers("whole", ranks, settings);
  train_workers("parts", ranks, with(settings, {fmt::format("train.steps={}", stop)}));
  train_workers("parts", ranks, with(settings, {"init.from=resume"}));
  EXPECT_EQ(std::ranges::max(skipped_steps("parts", stop)) > 0, skips);
  EXPECT_EQ(skipped_steps("parts", steps), skipped_steps("whole", steps));
  EXPECT_EQ(tensors("parts", steps), tensors("whole", steps));
  EXPECT_EQ(reproducible_metrics("parts"), reproducible_metrics("whole"));
  EXPECT_THAT(log_of("parts"), AllOf(HasSubstr("resumed from "), Not(HasSubstr("the checkpoint is of"))));
  const std::string moments = "optimizer.m.transformer.h.1.mlp.c_fc.weight";
  EXPECT_NE(parameter("whole", steps, 0, moments), parameter("whole", steps, 1, moments));
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GossipResume,
    ::testing::Values(
        Case{"Complete", 4, {"gossip.topology=complete"}}, Case{"Ring", 4, {"gossip.topology=ring"}},
        Case{"Exp", 8, {"gossip.topology=exp"}},
        Case{"AlternatingExpRing", 8, {"gossip.topology=alternating-exp-ring", "gossip.local_size=2"}},
        Case{"AccumAdamW", 4, {"optim.name=accum_adamw", "optim.accum_steps=4"}},
        Case{"ByBucket", 4, {"gossip.clip=bucket"}}, Case{"Bfloat16", 4, {"train.dtype=bfloat16"}},
        Case{"Spikes",
             4,
             {"train.spike_zscore=1e-9", "train.spike_window=8", "train.on_bad_step=skip", "optim.lr=1e-5",
              "lr_schedule.name=constant", "lr_schedule.decay_steps=0", "optim.name=accum_adamw",
              "optim.accum_steps=4"},
             15,  // the window is full after eight
             20,
             true},
        Case{"ThreeGoOnFromTheAverage",
             3,
             {"gossip.topology=complete", "gossip.continue_from_average=true", "train.global_batch=6"}},
        Case{"OfDataRanks",
             8,
             {"gossip.worker_size=2", "parallel.zero=1", "optim.name=accum_adamw", "optim.accum_steps=4"}},
        Case{"OfShards", 8, {"gossip.worker_size=4", "parallel.zero=3", "parallel.replicate=2"}},
        Case{"OnDisk", 4, {"gossip.worker_size=2", "parallel.zero=2", "parallel.offload=disk"}},
        Case{"OfTensorRanks", 4, {"parallel.tensor=2", "parallel.sequence=true", "train.micro_batch=2"}},
        Case{"Outer", 4, {"gossip.topology=complete", "outer.interval=3", "optim.name=muon"}},
        Case{"OuterSparse", 4, {"gossip.topology=complete", "outer.interval=3", "outer.compress=topk:0.05"}},
        Case{"OuterInt4", 4, {"gossip.topology=complete", "outer.interval=3", "outer.compress=int4"}},
        Case{"OuterStreaming",
             4,
             {"gossip.topology=complete", "outer.interval=4", "outer.fragments=2", "outer.overlap=2",
              "optim.ema=0.9"}},
        Case{"OuterInGroups", 8, {"gossip.worker_size=2", "parallel.zero=2", "outer.interval=2"}},
        Case{"OfStages", 4, {"parallel.pipeline=2", "run.deterministic=layout"}}),
    [](const auto& which) { return which.param.name; });

TEST_F(Gossip, EvaluatingDoesNotChangeTheRun) {
  train_workers("often", 4, {"eval.interval=3"});
  train_workers("once", 4, {"eval.interval=1000"});
  EXPECT_EQ(tensors("often", 10), tensors("once", 10));
  train_workers("continued", 4, {"eval.interval=3", "gossip.continue_from_average=true"});
  EXPECT_NE(tensors("continued", 10), tensors("once", 10));
  // It ended with an evaluation.
  EXPECT_EQ(parameter("continued", 10, 0), parameter("continued", 10, 3));
}

TEST_F(Gossip, StepsAndEvaluationsAreToldInOrder) {
  train_workers("run", 4, {"eval.interval=3", "log.interval=1"});
  EXPECT_THAT(logged_steps("run"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  std::vector<std::int64_t> steps;
  std::vector<double> distances;
  for (const auto& eval : metrics("run").evals) {
    steps.push_back(eval.step);
    ASSERT_TRUE(eval.consensus_distance) << eval.step;
    distances.push_back(*eval.consensus_distance);
  }
  EXPECT_THAT(steps, ElementsAre(0, 3, 6, 9, 10));
  EXPECT_EQ(distances.front(), 0);
  distances.erase(distances.begin());
  EXPECT_THAT(distances, Each(Gt(0)));
  EXPECT_THAT(log_of("run"),
              HasSubstr(fmt::format(" %, Consensus distance: {:.3e}, Train time: ", distances[0])));
  EXPECT_THAT(log_of("run"), HasSubstr("4 workers"));
  // Records of steps and evaluations, in the order of their creation.
  const auto lines = reproducible_metrics("run");
  EXPECT_LT(lines.find("\"step\":3,\"loss\""), lines.find("\"step\":3,\"train_loss\""));
  EXPECT_LT(lines.find("\"step\":3,\"train_loss\""), lines.find("\"step\":4,\"loss\""));
  train_workers("seldom", 4, {"log.interval=4"});
  EXPECT_THAT(logged_steps("seldom"), ElementsAre(4, 8, 10));
}

// The loss of a step is the mean over the workers. In the first step, where all models are equal, it is that
// of one model on the whole batch: the micro-batches are the same. The tolerance is for sums of eight double
// losses.
TEST_F(Gossip, LossesAreMeansOverTheWorkers) {
  train("one", with(kGossip, {"parallel.engine=allreduce", "gossip.bucket_mib=25", "log.interval=1"}));
  train_workers("workers", 4, {"log.interval=1", "optim.lr=1e-60"});  // parameters do not change
  const auto one = metrics("one").steps.front(), workers = metrics("workers").steps.front();
  EXPECT_NEAR(workers.loss, one.loss, 1e-12);
  EXPECT_GT(workers.grad_norm, one.grad_norm);  // the mean of norms is above the norm of the mean
}

TEST_F(Gossip, AnotherNumberOfWorkersStartsFromTheAverage) {
  train_workers("run", 4, {"train.steps=5"});
  const Settings still = {"optim.lr=1e-60", "init.from=resume", "checkpoint.interval=1", "eval.interval=0"};
  const auto mean = parameter("run", 5, WorkerSource::kMean);
  EXPECT_NE(mean, parameter("run", 5, 0));
  const auto go_on = [&](int ranks, int steps, const Settings& more) {
    train_workers("run", ranks, with(with(still, more), {fmt::format("train.steps={}", steps)}));
  };
  go_on(2, 6, {});
  EXPECT_THAT(log_of("run"),
              HasSubstr("the checkpoint is of 4 workers and this run of 2 workers: the start is "
                        "the mean of the workers' parameters and moments"));
  EXPECT_EQ(parameter("run", 6, 0), mean);
  EXPECT_EQ(parameter("run", 6, 1), mean);
  go_on(1, 7, {"parallel.engine=allreduce", "gossip.bucket_mib=25"});
  EXPECT_THAT(log_of("run"),
              HasSubstr("the checkpoint is of 2 workers and this run of one model: the start is "
                        "the mean of the workers' parameters and moments"));
  EXPECT_EQ(workers_of(CheckpointReader(checkpoint("run", 7))), 1);
  EXPECT_EQ(parameter("run", 7, 0), mean);
  // A mean of a power of two equal numbers is that number.
  go_on(4, 8, {"gossip.topology=complete"});
  EXPECT_THAT(log_of("run"), HasSubstr("the checkpoint is of one model and this run of 4 workers: all start "
                                       "from its parameters and moments"));
  for (const int worker : {0, 1, 2, 3}) EXPECT_EQ(parameter("run", 8, worker), mean) << worker;
}

TEST_F(Gossip, AnotherNumberOfWorkersStartsFromTheMeanOfTheOuterOptimizer) {
  const Settings outer = {"gossip.topology=complete", "outer.interval=4", "outer.fragments=2",
                          "outer.overlap=1"};
  train_workers("run", 4, with(outer, {"train.steps=6"}));
  // No move before the next checkpoint.
  train_workers("run", 2, with(outer, {"train.steps=7", "init.from=resume", "outer.interval=100"}));
  for (const std::string state : {"outer", "outer_m"}) {
    const auto tensor = "optimizer." + state + ".transformer.h.1.mlp.c_fc.weight";
    const auto mean = parameter("run", 6, WorkerSource::kMean, tensor);
    EXPECT_THAT(mean, Contains(testing::Ne(0))) << state;
    for (const int worker : {0, 1}) EXPECT_EQ(parameter("run", 7, worker, tensor), mean) << state;
  }
}

// The shape of a worker may change on a resume.
TEST_F(Gossip, WorkersOfOtherRanksGoOnExactly) {
  const Settings exact = {"run.deterministic=layout"};
  train_workers("whole", 4, exact);
  train_workers("parts", 8, with(exact, {"gossip.worker_size=2", "parallel.zero=2", "train.steps=5"}));
  train_workers("parts", 8, with(exact, {"parallel.pipeline=2", "init.from=resume"}));
  EXPECT_EQ(tensors("parts", 10), tensors("whole", 10));
}

// Half of all losses are above the mean, so each worker finds spikes in its own losses.
TEST_F(Gossip, WorkersSkipStepsOfTheirOwn) {
  const Settings settings = {"train.spike_zscore=1e-9", "train.spike_window=8", "optim.lr=1e-5",
                             "train.steps=30"};
  train_workers("run", 4, with(settings, {"train.on_bad_step=skip"}));
  const auto skipped = skipped_steps("run", 30);
  EXPECT_EQ(skipped.size(), 4u);
  EXPECT_THAT(skipped, Each(AllOf(Gt(0), ::testing::Lt(22))));
  EXPECT_NE(std::ranges::min(skipped), std::ranges::max(skipped));
  // The log gives the reason of the first bad step, and the number of the others.
  EXPECT_THAT(log_of("run"), ::testing::ContainsRegex("worker 0: the loss, .*; skipped"));
  int told = 0;
  const auto log = log_of("run");
  for (auto at = log.find(": skipped by "); at != std::string::npos; at = log.find(": skipped by ", at + 1))
    told += std::stoi(log.substr(at + 13));
  EXPECT_EQ(told, skipped[1] + skipped[2] + skipped[3]);
  EXPECT_THAT(
      error_of([&] { train_workers("stop", 4, settings); }),
      ::testing::ContainsRegex("worker [0-3]: the loss, .* standard deviations above the last 8 steps"));
}

// One worker has a bad step, since workers have different batches: all stop, with its message.
TEST_F(Gossip, ABadStepOfAWorkerStopsAllSoon) {
  const Stopwatch watch;
  const auto error = error_of([&] {
    train_workers("run", 4, {"optim.lr=1e39", "lr_schedule.warmup_steps=0"});
  });
  EXPECT_THAT(error,
              ::testing::ContainsRegex("step 2, worker [0-3]: the loss is not finite; micro-batch [1-4] "
                                       "of 8 .*first tensor that is not finite: transformer.wte.weight"));
  EXPECT_LT(watch.seconds(), 5);
  EXPECT_THAT(error_of([&] {
                run_threads({.ranks = 4}, [&](World& world) {
                  Trainer trainer(config("late", with(kGossip, {"train.steps=1000000"})), world);
                  if (world.ranks.rank() == 2) fail_user("the machine room is flooded");
                  trainer.run();
                });
              }),
              HasSubstr("the machine room is flooded"));
  EXPECT_LT(watch.seconds(), 10);
}

// A signal is for the whole process here, but ranks see it in different steps.
TEST_F(Gossip, ASignalStopsAllAfterTheSameStepAndLosesNothing) {
  const Settings endless = {"train.steps=1000000", "eval.interval=0", "log.interval=1",
                            "checkpoint.interval=0", "lr_schedule.decay_steps=100"};
  std::vector<TrainResult> results(4);
  std::thread sender([&] {
    while (!fs::exists(run("run") / "metrics.jsonl") || fs::file_size(run("run") / "metrics.jsonl") < 2000)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::raise(SIGTERM);
  });
  run_threads({.ranks = 4}, [&](World& world) {
    results[static_cast<std::size_t>(world.ranks.rank())] =
        Trainer(config("run", with(kGossip, endless)), world).run();
  });
  sender.join();
  for (const auto& result : results) {
    EXPECT_TRUE(result.interrupted);
    EXPECT_EQ(result.step, results[0].step);
    EXPECT_EQ(result.train_loss, results[0].train_loss);
  }
  const auto steps = logged_steps("run");
  EXPECT_EQ(steps.back(), results[0].step);
  EXPECT_EQ(std::ssize(steps), results[0].step);
  EXPECT_THAT(log_of("run"), HasSubstr(fmt::format("stopped by SIGTERM after step {};", results[0].step)));

  const auto last = fmt::format("train.steps={}", results[0].step + 3);
  train_workers("run", 4, with(endless, {last, "init.from=resume"}));
  train_workers("undisturbed", 4, with(endless, {last}));
  EXPECT_EQ(tensors("run", results[0].step + 3), tensors("undisturbed", results[0].step + 3));
  EXPECT_EQ(reproducible_metrics("run"), reproducible_metrics("undisturbed"));
}

}  // namespace
}  // namespace shoal::test
