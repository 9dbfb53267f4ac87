// Tests of a machine that is measured: what is kept, and that the ranks of a job get the same answers. Times
// themselves are not tested.
#include "planner/measured_machine.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <fstream>
#include <iterator>

#include "config/layout.h"
#include "core/cores.h"
#include "data/temp_folder.h"
#include "planner/prediction.h"

namespace shoal {
namespace {

using test::TempFolder;
using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::Gt;

RunPlan plan_with_micro_batch(int micro_batch) {
  auto config = parse_config(R"(
data.dir = "none"
run.name = "measured"
model = { n_layer = 2, n_head = 2, n_embd = 32, block_size = 16, vocab_size = 65 }
train = { global_batch = 8, steps = 1 }
)",
                             "test", {});
  config.train.micro_batch = micro_batch;
  config.train.global_batch = std::max(8, 2 * micro_batch);
  resolve_layout(config, 2);
  return make_plan(config);
}

RunPlan sample(int micro_batch) { return sample_of(plan_with_micro_batch(micro_batch)); }

std::vector<double> numbers_of(const SampleTimes& times) {
  std::vector<double> all = {times.update};
  for (const auto& pass : times.parts.values) all.insert(all.end(), pass.begin(), pass.end());
  return all;
}

struct MeasuredMachineTest : ::testing::Test {
  TempFolder folder;
  MeasuringOptions options() const { return {.cache = folder / "calibration"}; }
};

// Plans that differ in a type, or in where their state is, take other times.
TEST_F(MeasuredMachineTest, TellsPlansApart) {
  MeasuredMachine machine(1, options());
  std::vector<RunPlan> plans(4, sample(2));
  for (auto& plan : plans) plan.engine.compute = plan.pipeline.compute = DType::bf16;
  plans[1].pipeline.stream = DType::bf16;
  plans[2].engine.on_host = true;
  plans[3].engine.reduced = DType::bf16;
  for (const auto& plan : plans) machine.times(plan, {});
  EXPECT_EQ(machine.measured(), std::ssize(plans));
}

TEST_F(MeasuredMachineTest, KeepsWhatItMeasures) {
  MeasuredMachine first(2, options());
  const auto times = numbers_of(first.times(sample(2), {}));
  EXPECT_THAT(times, Each(Gt(0)));
  const GroupCall call{.kind = GroupCall::Kind::all_reduce, .bytes = 1e5, .ranks = 2};
  const double seconds = first.seconds(call);
  EXPECT_GT(seconds, 0);
  EXPECT_EQ(first.measured(), 2);

  MeasuredMachine second(2, options());
  EXPECT_THAT(numbers_of(second.times(sample(2), {})), ElementsAreArray(times));
  EXPECT_EQ(second.seconds(call), seconds);
  EXPECT_EQ(second.measured(), 0);

  auto again = options();
  again.again = true;
  MeasuredMachine third(2, again);
  third.times(sample(2), {});
  EXPECT_EQ(third.measured(), 1);
}

// A sample has 2048 tokens at most, whatever the micro-batch.
TEST_F(MeasuredMachineTest, ALargeMicroBatchIsAMultipleOfItsSample) {
  MeasuredMachine machine(2, options());
  const auto times = machine.times(sample(256), {}), twice = machine.times(sample(512), {});
  EXPECT_EQ(machine.measured(), 1);
  EXPECT_EQ(twice.update, times.update);
  for (std::size_t pass = 0; pass < times.parts.values.size(); ++pass) {
    for (std::size_t part = 0; part < times.parts.values[pass].size(); ++part)
      EXPECT_EQ(twice.parts.values[pass][part], 2 * times.parts.values[pass][part]);
  }
}

TEST_F(MeasuredMachineTest, HasNoTimesBehindItsTime) {
  auto none = options();
  none.seconds = 0;
  MeasuredMachine machine(2, none);
  EXPECT_FALSE(machine.has_times(sample(2)));
  MeasuredMachine(2, options()).times(sample(2), {});
  EXPECT_TRUE(machine.has_times(sample(2)));
  EXPECT_FALSE(machine.has_times(sample(4)));
  auto elsewhere = sample(2);
  elsewhere.backend = BackendKind::reference;
  EXPECT_FALSE(machine.has_times(elsewhere));
}

TEST_F(MeasuredMachineTest, TriesSteps) {
  const auto plan = plan_with_micro_batch(2);
  MeasuredMachine first(2, options());
  const double once = first.try_step(plan, 1).seconds, typical = first.try_step(plan, 3).seconds;
  EXPECT_GT(once, 0);
  EXPECT_GT(typical, 0);
  EXPECT_EQ(first.measured(), 3);
  EXPECT_EQ(first.try_step(plan, 1).seconds, once) << "whatever else is known";
  auto gossip = plan;
  gossip.mesh.workers = 2;
  EXPECT_EQ(first.try_step(gossip, 1).count, 0);

  MeasuredMachine second(2, options());
  EXPECT_EQ(second.try_step(plan, 3).seconds, typical);
  EXPECT_EQ(second.measured(), 0);

  auto none = options();
  none.again = true;
  none.trial_seconds = 0;
  EXPECT_EQ(MeasuredMachine(2, none).try_step(plan, 1).count, 0);
}

// Gradients that travel in another type, and other steps of Newton and Schulz, take another time.
TEST_F(MeasuredMachineTest, KeepsPlansApart) {
  const auto plan = plan_with_micro_batch(2);
  auto narrow = plan;
  narrow.engine.reduced = DType::bf16;
  EXPECT_GT(MeasuredMachine(2, options()).try_step(plan, 1).count, 0);
  MeasuredMachine second(2, options());
  EXPECT_EQ(second.try_step(plan, 1).count, 1);
  EXPECT_EQ(second.measured(), 0);
  EXPECT_EQ(second.try_step(narrow, 1).count, 1);
  EXPECT_EQ(second.measured(), 1);

  auto muon = sample(2), longer = muon;
  muon.engine.optimizer = MuonConfig{};
  longer.engine.optimizer = MuonConfig{.steps = 9};
  second.times(muon, {});
  second.times(longer, {});
  EXPECT_EQ(second.measured(), 3);
}

// plan.memory_gib may be more than there is.
TEST_F(MeasuredMachineTest, TriesNoStepThatHasNoRoom) {
  auto plan = plan_with_micro_batch(2);
  plan.pipeline.batch.batch = std::int64_t{1} << 34;
  EXPECT_EQ(MeasuredMachine(2, options()).try_step(plan, 1).count, 0);
}

// Two ranks share a host, and a third has one with more cores to itself.
TEST_F(MeasuredMachineTest, RanksOfUnevenHostsAgree) {
  run_threads({.ranks = 3}, [&](World& world) {
    const int rank = world.ranks.rank();
    const bool alone = rank == 2;
    World uneven{world.ranks, alone ? 0 : rank, alone ? 1 : 2, alone ? 8 : 4, world.where};
    const MeasuredMachine machine(uneven, options());
    EXPECT_EQ(machine.ranks_per_host(), 1);
    EXPECT_EQ(machine.threads_of(sample(1)), 4);
    const auto plan = plan_with_micro_batch(2);
    EXPECT_EQ(memory_of_rank(plan, machine),
              estimate_memory(plan, {.world_size = 2, .local_size = 1, .cores = 4}).of_device());
  });
}

TEST_F(MeasuredMachineTest, RanksOfAJobAgree) {
  std::vector<std::vector<double>> all(3);
  run_threads({.ranks = 3}, [&](World& world) {
    MeasuredMachine machine(world, options());
    auto& mine = all[static_cast<std::size_t>(world.ranks.rank())];
    mine = numbers_of(machine.times(sample(1), {}));
    // Ranks 0 and 2; rank 1 has no partner.
    mine.push_back(
        machine.seconds({.kind = GroupCall::Kind::message, .bytes = 1e4, .ranks = 2, .stride = 2}));
    mine.push_back(machine.seconds({.kind = GroupCall::Kind::all_gather, .bytes = 1e4, .ranks = 3}));
    mine.push_back(machine.has_times(sample(2)) ? 1 : 0);
    mine.push_back(machine.memory_of_rank());
  });
  EXPECT_THAT(all[0], Each(Gt(0)));
  EXPECT_EQ(all[1], all[0]);
  EXPECT_EQ(all[2], all[0]);
}

// No three of 4 ranks are 3 apart.
TEST_F(MeasuredMachineTest, AGroupWithoutRoomHasThePriceOfACloserOne) {
  run_threads({.ranks = 4}, [&](World& world) {
    MeasuredMachine machine(world, options());
    const auto seconds = [&](int stride) {
      return machine.seconds({.bytes = 1e4, .ranks = 3, .stride = stride});
    };
    const double apart = seconds(3);
    EXPECT_EQ(apart, seconds(1));
    EXPECT_EQ(machine.measured(), 1);
  });
}

TEST_F(MeasuredMachineTest, ACallOfNoGroupIsRefused) {
  const RunRanks run = [](int count, const RankBody& body) { run_threads({.ranks = count}, body); };
  EXPECT_THROW(measure_call(run, {.ranks = 3, .stride = 3}, 4, 1024), Error);
}

// One of three ranks has one core, and then another one has.
TEST_F(MeasuredMachineTest, PlacementsOfAJobAreKeptApart) {
  const auto cores = allowed_core_numbers();
  if (cores.size() < 2) GTEST_SKIP() << "there is one core";
  const auto measured = [&](int bound) {
    int count = 0;
    run_threads({.ranks = 3}, [&](World& world) {
      if (world.ranks.rank() == bound) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cores.back(), &one);
        ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
      }
      MeasuredMachine machine(world, options());
      machine.times(sample(1), {});
      if (world.ranks.rank() == 0) count = machine.measured();
    });
    return count;
  };
  EXPECT_EQ(measured(1), 1);
  EXPECT_EQ(measured(1), 0);
  EXPECT_EQ(measured(2), 1);
}

TEST_F(MeasuredMachineTest, PassesOverDamagedLines) {
  MeasuredMachine(2, options()).times(sample(2), {});
  std::ifstream in(folder / "calibration");
  std::string text(std::istreambuf_iterator<char>(in), {});
  text[text.size() / 2] ^= 1;
  folder.write("calibration", text);
  MeasuredMachine machine(2, options());
  EXPECT_THAT(numbers_of(machine.times(sample(2), {})), Each(Gt(0)));
  EXPECT_EQ(machine.measured(), 1);
}

}  // namespace
}  // namespace shoal
