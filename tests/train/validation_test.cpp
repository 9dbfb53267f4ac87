// An evaluation that a signal ends is made by the run that goes on.
#include "train/validation.h"

#include <csignal>

#include "train/tiny_run.h"

namespace shoal::test {
namespace {

struct StoppedCase {
  std::string name;
  int ranks;
  Settings settings;
  friend void PrintTo(const StoppedCase& which, std::ostream* out) { *out << which.name; }
};

class StoppedEvaluation : public TinyRuns, public ::testing::WithParamInterface<StoppedCase> {};

TEST_P(StoppedEvaluation, IsMadeAfterTheResumeAsIfNothingHadBeen) {
  const auto& [name, ranks, settings] = GetParam();
  const auto given =
      with({"eval.interval=4", "eval.sequences=24", "train.steps=8", "checkpoint.interval=0"}, settings);
  run_threads({.ranks = ranks}, [&](World& world) {
    int step = 0;
    const auto before_step = [&] {
      if (++step == 4 && world.ranks.rank() == 0) std::raise(SIGTERM);
    };
    EXPECT_TRUE(Trainer(config("run", given), world, nullptr, before_step).run().interrupted);
  });
  EXPECT_EQ(metrics("run").evals.size(), 1u);  // at the start
  train("run", with(given, {"init.from=resume"}), ranks);
  train("undisturbed", given, ranks);
  EXPECT_EQ(tensors("run", 8), tensors("undisturbed", 8));
  EXPECT_EQ(reproducible_metrics("run"), reproducible_metrics("undisturbed"));
}

// A mean of three equal models may differ from them in its last bits.
StoppedCase of_three_workers(const std::string& name, const Settings& settings) {
  Settings all = {"parallel.engine=gossip", "train.micro_batch=1", "gossip.topology=complete"};
  all.insert(all.end(), settings.begin(), settings.end());
  return {name, 3, all};
}

INSTANTIATE_TEST_SUITE_P(
    Runs, StoppedEvaluation,
    ::testing::Values(StoppedCase{"OneRank", 1, {}}, StoppedCase{"ThreeRanks", 3, {"parallel.zero=2"}},
                      StoppedCase{"MovingAverage", 1, {"optim.ema=0.5"}}, of_three_workers("Gossip", {}),
                      of_three_workers("GossipFromTheAverage", {"gossip.continue_from_average=true"}),
                      of_three_workers("OuterAfterAnExchange", {"outer.interval=2"}),
                      of_three_workers("OuterBetweenExchanges", {"outer.interval=3"})),
    [](const auto& which) { return which.param.name; });

}  // namespace
}  // namespace shoal::test
