// Predictions on a machine where only collectives take time, a second for each byte that a rank sends: they
// are compared with the traffic of a dry run.
#include "planner/prediction.h"

#include <gtest/gtest.h>

#include "config/layout.h"
#include "planner/dry_run.h"

namespace shoal {
namespace {

constexpr const char* kPredicted = R"(
data.dir = "none"
run.name = "predicted"
[model]
n_head = 4
n_embd = 64
block_size = 16
vocab_size = 1000
[train]
global_batch = 16
micro_batch = 1
steps = 1
)";

struct ByteMachine final : Machine {
  std::string name() const override { return "bytes"; }
  SampleTimes times(const RunPlan&, const SampleKernels&) override { return {}; }
  double seconds(const GroupCall& call) override {
    if (call.kind == GroupCall::Kind::message) return 0;
    return call.bytes * (call.ranks - 1) / call.ranks * (call.kind == GroupCall::Kind::all_reduce ? 2 : 1);
  }
  bool overlaps() const override { return false; }
  int ranks_per_host() const override { return 8; }
  double memory_of_rank() const override { return 1e12; }
};

double traffic(const DryRun& run, int rank, const std::string& subject) {
  const auto holds = [&](const DryRun::Rank& its) { return std::ranges::count(its.ranks, rank) > 0; };
  double bytes = 0;
  for (const auto& total : std::ranges::find_if(run.ranks, holds)->traffic) {
    if (total.subject == subject) bytes += static_cast<double>(total.bytes);
  }
  return bytes;
}

void expect_traffic_of_dry_run(const std::vector<std::string>& settings) {
  ByteMachine machine;
  auto config = parse_config(kPredicted, "test", settings);
  resolve_layout(config, 8);
  const auto plan = make_plan(config);
  const auto run = dry_run(plan);
  const auto step = predict(plan, machine).step;
  for (int stage = 0; stage < plan.mesh.pipeline; ++stage) {
    SCOPED_TRACE(testing::Message() << testing::PrintToString(settings) << ", stage " << stage);
    const int rank = stage * plan.mesh.data;
    const auto& terms = step.terms[static_cast<std::size_t>(stage)];
    EXPECT_NEAR(terms[static_cast<std::size_t>(CostTerm::parameters)], traffic(run, rank, "parameters"), 0.5);
    // Padding is not counted where the end stages add up the gradients of the tied matrix.
    const double tied = traffic(run, rank, "tied gradients"), padding = 8 * 1024 * plan.mesh.data;
    EXPECT_NEAR(terms[static_cast<std::size_t>(CostTerm::gradients)], traffic(run, rank, "gradients") + tied,
                tied > 0 ? padding : 0.5);
  }
}

TEST(Prediction, HasTheTrafficOfADryRun) {
  const std::vector<std::vector<std::string>> all_stages = {
      {},
      {"parallel.pipeline=2"},
      {"parallel.pipeline=2", "parallel.chunks=2", "parallel.schedule=interleaved"}};
  for (const auto& settings : all_stages) {
    for (const char* zero : {"0", "1", "2", "3"}) {
      for (const char* layers : {"4", "5", "9"}) {
        for (const char* dtype : {"float32", "bfloat16"}) {
          auto all = settings;
          all.insert(all.end(), {std::string("parallel.zero=") + zero, std::string("model.n_layer=") + layers,
                                 std::string("train.dtype=") + dtype});
          expect_traffic_of_dry_run(all);
        }
      }
    }
  }
}

RunPlan predicted_plan(const std::vector<std::string>& settings) {
  auto config = parse_config(kPredicted, "test", settings);
  resolve_layout(config, 8);
  return make_plan(config);
}

// Later stages may have more blocks, by their cost or by hand, or be the first that are trained.
TEST(Prediction, TheRankThatNeedsMostMayBeInTheMiddle) {
  const std::vector<std::vector<std::string>> all = {
      {"model.n_layer=12"},
      {"model.n_layer=12", "parallel.stages=1,1,1,5,1,1,1,1"},
      {"model.n_layer=12", "parallel.stages=2,2,1,1,2,1,2,1"},
      {"model.n_layer=20", "optim.frozen=embedding, block.[0-9]"}};
  ByteMachine machine;
  for (auto settings : all) {
    settings.insert(settings.end(), {"parallel.pipeline=8", "model.vocab_size=100"});
    const auto plan = predicted_plan(settings);
    double most = 0;
    for (int stage = 0; stage < 8; ++stage) most = std::max(most, memory_of_stage(plan, machine, stage));
    EXPECT_EQ(memory_of_rank(plan, machine), most) << testing::PrintToString(settings);
  }
}

TEST(Prediction, AStageWithoutTrainedUnitsExchangesNothing) {
  ByteMachine machine;
  const auto plan = predicted_plan({"model.n_layer=4", "parallel.engine=gossip", "parallel.pipeline=2",
                                    "parallel.stages=2,2", "optim.frozen=embedding, block.[0-1]"});
  const auto step = predict(plan, machine).step;
  const auto parameters = static_cast<std::size_t>(CostTerm::parameters);
  EXPECT_EQ(step.terms[0][parameters], 0);
  EXPECT_GT(step.terms[1][parameters], 0);
}

}  // namespace
}  // namespace shoal
