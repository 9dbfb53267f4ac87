// The cut of a pipeline into stages that fit.
#include "planner/stage_fit.h"

#include <gtest/gtest.h>

#include "config/layout.h"
#include "parallel/pipeline/stages.h"
#include "planner/described_machine.h"

namespace shoal {
namespace {

// Counts the estimates of memory that are made for it.
struct CountingMachine final : Machine {
  std::string name() const override { return "counts"; }
  SampleTimes times(const RunPlan&, const SampleKernels&) override { return {}; }
  double seconds(const GroupCall&) override { return 0; }
  bool overlaps() const override { return true; }
  int ranks_per_host() const override {
    ++estimates;
    return 0;  // all ranks are on one
  }
  double memory_of_rank() const override { return 1e12; }
  mutable int estimates = 0;
};

RunPlan plan_to_cut(int layers, int stages) {
  auto config = parse_config(R"(
data.dir = "none"
run.name = "cut"
model = { n_head = 2, n_embd = 32, block_size = 64, vocab_size = 100 }
train = { backend = "cuda", global_batch = 16, micro_batch = 2, steps = 1, recompute = "block" }
)",
                             "test", {});
  config.model.n_layer = layers;
  config.parallel.pipeline = stages;
  resolve_layout(config, stages);
  return make_plan(config);
}

constexpr UnitSeconds kUnits{.embedding = 0.1, .block = 1, .head = 0.5, .recomputed = 1.5};

// With all blocks recomputed a stage fits half of the blocks that it would have to take. The search for that
// number is a bisection.
TEST(StageFit, FindsSoonThatNothingFits) {
  const CountingMachine machine;
  const auto plan = plan_to_cut(96, 2);
  auto quarters = plan;
  quarters.ranges = {{0, 25}, {25, 98}};
  const double limit = memory_of_stage(quarters, machine, 0);
  machine.estimates = 0;
  EXPECT_FALSE(StageFit(machine, limit).best_cut(plan, kUnits));
  EXPECT_LE(machine.estimates, 32);
}

// The cut fits, and no stage would with a block less recomputed.
TEST(StageFit, RecomputesTheFewestBlocks) {
  const CountingMachine machine;
  auto plan = plan_to_cut(12, 3);
  const double least = memory_of_rank(plan, machine);
  plan.pipeline.recompute = Recompute::none;
  const double most = memory_of_rank(plan, machine);
  plan.pipeline.recompute = Recompute::block;
  int recomputed = 0;
  for (const double share : {0.0, 0.2, 0.4, 0.7}) {
    const double limit = least + share * (most - least);
    const auto cut = StageFit(machine, limit).best_cut(plan, kUnits);
    ASSERT_TRUE(cut) << share;
    plan.ranges = ranges_by_hand(plan.model, 3, cut->blocks);
    for (int stage = 0; stage < 3; ++stage) {
      auto& counts = plan.pipeline.recompute_blocks = cut->recomputed;
      EXPECT_LE(memory_of_stage(plan, machine, stage), limit) << share;
      auto& count = counts[static_cast<std::size_t>(stage)];
      recomputed += count;
      if (count == 0) continue;
      --count;
      EXPECT_GT(memory_of_stage(plan, machine, stage), limit) << share;
    }
  }
  EXPECT_GT(recomputed, 12);
}

}  // namespace
}  // namespace shoal
