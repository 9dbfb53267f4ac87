#include "planner/trials.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace shoal {
namespace {

// Plans with a mesh of `tensor` tensor ranks. The number of sequences in a micro-batch tells them apart.
RankedPlan plan_of(int tensor, std::int64_t sequences, double predicted) {
  RankedPlan p;
  p.plan.mesh.tensor = tensor;
  p.plan.pipeline.batch.batch = sequences;
  p.prediction.step.seconds = predicted;
  return p;
}

// Three of one mesh, and one of another.
std::vector<RankedPlan> plans_of_two_meshes() {
  return {plan_of(1, 1, 1.0), plan_of(1, 2, 1.01), plan_of(1, 4, 1.02), plan_of(2, 1, 1.1)};
}

// A step with two tensor ranks takes 1.05 s, one with one rank `slower` seconds.
struct TryingMachine final : Machine {
  std::string name() const override { return "trials"; }
  SampleTimes times(const RunPlan&, const SampleKernels&) override { return {}; }
  double seconds(const GroupCall&) override { return 0; }
  bool overlaps() const override { return false; }
  int ranks_per_host() const override { return 8; }
  double memory_of_rank() const override { return 1e12; }
  Trials try_step(const RunPlan& plan, int most) override {
    ++asked;
    if (std::ranges::find(tried, plan) == tried.end()) {
      if (std::ssize(tried) == budget || plan.pipeline.batch.batch == too_many_sequences) return {};
      tried.push_back(plan);
    }
    const double seconds = plan.mesh.tensor == 2 ? 1.05 : slower;
    return {plan.pipeline.batch.batch == fast_sequences ? 0.97 * seconds : seconds, most};
  }
  double slower = 1;
  std::int64_t fast_sequences = -1;  // micro-batches of so many take 3 % less
  std::int64_t too_many_sequences = -1;  // for which there is no room
  std::ptrdiff_t budget = 100;
  std::vector<RunPlan> tried;
  int asked = 0;
};

TEST(Trials, AnotherMeshIsTriedBeforeVariants) {
  TryingMachine machine;
  machine.budget = 2;
  auto plans = plans_of_two_meshes();
  try_plans(plans, machine);
  ASSERT_EQ(machine.tried.size(), 2u);
  EXPECT_EQ(machine.tried[0].mesh.tensor, 1);
  EXPECT_EQ(machine.tried[1].mesh.tensor, 2);
}

TEST(Trials, APlanWithoutRoomIsPassedOver) {
  TryingMachine machine;
  machine.too_many_sequences = 1;
  auto plans = plans_of_two_meshes();
  try_plans(plans, machine);
  EXPECT_EQ(machine.tried.size(), 2u);
  EXPECT_EQ(plans.front().plan.pipeline.batch.batch, 2);
}

TEST(Trials, ThereAreNoRoundsWhereNothingCouldBeTried) {
  TryingMachine machine;
  machine.budget = 0;
  auto plans = plans_of_two_meshes();
  try_plans(plans, machine);
  EXPECT_EQ(machine.asked, 4) << "once for each plan";
}

TEST(Trials, AMeshThatIsPredictedTooFastLosesToOneThatIsNot) {
  TryingMachine machine;
  machine.slower = 1.2;
  auto plans = plans_of_two_meshes();
  try_plans(plans, machine);
  EXPECT_EQ(plans.front().plan.mesh.tensor, 2);
  EXPECT_EQ(plans.front().tried.seconds, 1.05);
}

TEST(Trials, ManyTrialsOutweighThePrediction) {
  TryingMachine machine;
  machine.fast_sequences = 2;
  std::vector<RankedPlan> plans = {plan_of(1, 1, 1.0), plan_of(1, 2, 1.05)};
  try_plans(plans, machine);
  EXPECT_EQ(plans.front().tried.seconds, 0.97);
}

TEST(Trials, AMeshThatIsPredictedFarTooSlowIsNotTried) {
  TryingMachine machine;
  std::vector<RankedPlan> plans = {plan_of(1, 1, 1.0), plan_of(2, 1, 1.3)};
  try_plans(plans, machine);
  EXPECT_EQ(machine.tried.size(), 1u);
  EXPECT_EQ(plans.back().tried.count, 0);
}

}  // namespace
}  // namespace shoal
