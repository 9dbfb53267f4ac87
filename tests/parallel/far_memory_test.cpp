// Training on a backend whose memory the host cannot access, like a GPU's.
#include <fmt/format.h>

#include <limits>

#include "ops/cpu/cpu.h"
#include "ops/far_backend.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/gossip_run.h"

namespace shoal::test {
namespace {

// No code above the backend accesses its memory, and runs are equal to those in host memory.
void expect_the_same_from_afar(RanksRun run) {
  const auto near = bytes_of(train_workers(run));
  for (const bool eager : {true, false}) {  // updates that may end later
    run.backend = [=](int) {
      return std::make_unique<FarBackend>(make_cpu_backend(1), FarBackend::Eager{.updates = eager});
    };
    EXPECT_EQ(bytes_of(train_workers(run)), near);
  }
}

struct FarMesh {
  MeshShape mesh;
  int zero = 0;
};

class FarMemory : public testing::TestWithParam<FarMesh> {};

TEST_P(FarMemory, IsTheSameRun) {
  for (const bool exact : {false, true}) {
    RanksRun run;
    run.steps = 11;  // nothing is evaluated between the last update and the outcome
    run.mesh = GetParam().mesh;
    run.sequence = run.mesh.tensor > 1;
    run.recompute = run.mesh.data > 1 ? Recompute::block : Recompute::none;
    run.engine = {.grad_clip = 0.1, .zero = GetParam().zero, .layout_exact = exact, .micro_batches = 4};
    expect_the_same_from_afar(run);
    run.engine.compute = run.engine.reduced = DType::bf16;
    expect_the_same_from_afar(run);
  }
}

INSTANTIATE_TEST_SUITE_P(, FarMemory,
                         testing::Values(FarMesh{{1, 1, 1}}, FarMesh{{1, 1, 1}, 2}, FarMesh{{1, 1, 1}, 3},
                                         FarMesh{{1, 2, 1}, 0}, FarMesh{{1, 2, 1}, 1}, FarMesh{{1, 2, 1}, 2},
                                         FarMesh{{1, 2, 1}, 3}, FarMesh{{1, 1, 2}}, FarMesh{{2, 1, 1}},
                                         FarMesh{{2, 2, 2}, 3}),
                         [](const auto& test) {
                           const auto& mesh = test.param.mesh;
                           return fmt::format("{}x{}x{}Zero{}", mesh.pipeline, mesh.data, mesh.tensor,
                                              test.param.zero);
                         });

// AdamW updates what is not a hidden matrix.
TEST(FarMemoryOfMuon, IsTheSameRun) {
  RanksRun run;
  run.steps = 11;
  run.engine = {.optimizer = MuonConfig{}, .grad_clip = 0.1, .micro_batches = 4};
  expect_the_same_from_afar(run);
}

// initialize() and first_bad_tensor() wait for updates that may end later.
TEST(FarMemoryOfUpdates, IsUsedWhenTheyHaveEnded) {
  RanksRun run;
  run.backend = [](int) {
    return std::make_unique<FarBackend>(make_cpu_backend(1), FarBackend::Eager{.updates = false});
  };
  const auto stepped = [&](auto&& before) {
    return bytes_of(train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
      before(rank);
      rank.step(0, outcome);
    }));
  };
  const auto once = stepped([](RankOfRun&) {});
  const auto again = stepped([](RankOfRun& rank) {
    RunOutcome unused;
    rank.step(0, unused);
    rank.engine().initialize(Trainee::kSeed);
  });
  EXPECT_TRUE(again == once);

  run.lr = std::numeric_limits<double>::infinity();
  train_workers(run, [](RankOfRun& rank, RunOutcome& outcome) {
    EXPECT_EQ(rank.engine().first_bad_tensor(), "");
    rank.step(0, outcome);
    EXPECT_EQ(rank.engine().first_bad_tensor(), "transformer.wte.weight");
  });
}

TEST(FarMemoryOfWorkers, IsTheSameRun) {
  auto run = gossip_run(make_topology("exp", 4, 1));
  expect_the_same_from_afar(run);
  run.engine.gossip->clip_by_bucket = true;
  run.engine.gossip->bucket_bytes = kTinyBuckets;
  adamw_of(run.engine).accum_steps = 2;
  expect_the_same_from_afar(run);
}

}  // namespace
}  // namespace shoal::test
