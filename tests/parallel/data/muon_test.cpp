// Muon in the engine: whole matrices are dealt over the data ranks, and no layout changes a bit.
#include <gmock/gmock.h>

#include "ops/far_backend.h"
#include "parallel/gossip_run.h"
#include "parallel/ranks_run.h"

namespace shoal::test {
namespace {

RanksRun muon_run(const MeshShape& mesh = {}, int zero = 0, int replicate = 1) {
  return exact_run(MuonConfig{.rate = 2}, mesh, zero, replicate);
}

bool is_matrix(std::string_view name) {
  return name.find(".h.") != std::string_view::npos && name.ends_with("weight") &&
         name.find(".ln_") == std::string_view::npos;
}

TEST(MuonEngine, DoesNotDependOnTheLayout) {
  const auto one = train(muon_run());
  EXPECT_NE(one.losses.front(), one.losses.back());
  for (const int ranks : {2, 3, 4, 8}) {
    for (int zero = 0; zero <= 3; ++zero)
      EXPECT_TRUE(train(muon_run({.data = ranks}, zero)).bytes() == one.bytes())
          << ranks << ", ZeRO " << zero;
  }
  EXPECT_TRUE(train(muon_run({.data = 4}, 2, 2)).bytes() == one.bytes()) << "replicated";
  EXPECT_TRUE(train(muon_run({.pipeline = 2, .data = 2}, 1)).bytes() == one.bytes()) << "stages";
  EXPECT_TRUE(train(muon_run({.pipeline = 3, .data = 2}, 3)).bytes() == one.bytes()) << "stages, ZeRO 3";

  // Tensor ranks regroup sums, but data ranks of the same tensor size do not.
  for (const bool sequence : {false, true}) {
    const auto tensor = [&](const MeshShape& mesh, int zero) {
      auto run = muon_run(mesh, zero);
      run.sequence = sequence;
      return train(run).bytes();
    };
    const auto two = tensor({.tensor = 2}, 0);
    EXPECT_TRUE(tensor({.data = 2, .tensor = 2}, 3) == two) << "tensor";
    EXPECT_TRUE(tensor({.pipeline = 2, .data = 2, .tensor = 2}, 1) == two) << "tensor and stages";
  }
}

TEST(MuonEngine, DoesNotDependOnTheLayoutInBfloat16) {
  const auto outcome = [](const MeshShape& mesh, int zero) {
    auto run = muon_run(mesh, zero);
    run.engine.compute = DType::bf16;
    return train(run).bytes();
  };
  EXPECT_TRUE(outcome({.pipeline = 2, .data = 3}, 2) == outcome({}, 0));
}

// Tensor ranks have rows or columns of each matrix, and add parts of products.
TEST(MuonEngine, TensorRanksAgreeWithOneRank) {
  auto run = muon_run();
  run.steps = 1;
  const auto one = train(run);
  run.mesh = {.tensor = 2};
  const auto shared = train(run);
  for (const auto& [name, values] : one.state) {
    if (!is_matrix(name) || name.starts_with("optimizer.")) continue;
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - shared.state.at(name)[i], 2);
      size += std::pow(values[i], 2);
    }
    // The rounding of gradients, some 60 operations of 0.7 u, times the iteration's 341 (muon_test.cpp).
    EXPECT_LE(std::sqrt(difference), 341 * std::sqrt(60) * 0.7 * 0x1p-24 * std::sqrt(size)) << name;
  }
}

TEST(MuonEngine, OnDiskAndFarFromTheHostItIsExactToo) {
  const auto one = train(muon_run()).bytes();
  auto run = muon_run({.data = 2}, 2);
  run.engine.offload = testing::TempDir();
  EXPECT_TRUE(train(run).bytes() == one) << "on disk";
  for (const auto& mesh : {MeshShape{}, MeshShape{.data = 2}}) {
    run = muon_run(mesh, 2);
    run.backend = [](int) { return std::make_unique<FarBackend>(make_cpu_backend(1)); };
    EXPECT_TRUE(train(run).bytes() == one) << "far";
    run.engine.on_host = true;
    run.engine.streamed = 1024;
    EXPECT_TRUE(train(run).bytes() == one) << "far, and state on the host";
  }
}

// Each worker has all it needs: the mean of models takes no part in directions.
TEST(MuonEngine, WorkersOfSeveralRanksAreWorkersOfOne) {
  const auto outcome = [](int data) {
    auto run = muon_run({.data = data, .workers = 2}, 1);
    run.engine.gossip = GossipOptions{.topology = make_topology("complete", 2, 1), .bucket_bytes = 4096};
    const auto workers = train_workers(run);
    return workers[0].bytes() + workers[1].bytes();
  };
  EXPECT_TRUE(outcome(3) == outcome(1));
}

TEST(MuonEngine, KeepsNoSecondMomentOfMatrices) {
  const auto outcome = train(muon_run({.data = 2}, 1));
  for (const auto& [name, values] : outcome.state) {
    if (name.starts_with("optimizer.")) continue;
    EXPECT_TRUE(outcome.state.contains("optimizer.m." + name));
    EXPECT_EQ(outcome.state.contains("optimizer.v." + name), !is_matrix(name)) << name;
  }
  const auto optimizer = [](const RanksRun& run) {
    return engine_memory(run.model, run.engine, 2).optimizer;
  };
  auto with_adamw = muon_run({.data = 2}, 1);
  with_adamw.engine.optimizer = AdamWConfig{};
  EXPECT_LT(optimizer(muon_run({.data = 2}, 1)), 0.8 * static_cast<double>(optimizer(with_adamw)));
}

TEST(MuonEngine, ChangesNothingWhereTheGradientIsNotFinite) {
  const auto run = muon_run();
  const auto self = make_self_communicator();
  RankOfRun rank(run, *self);
  RunOutcome outcome, before, after;
  rank.step(0, outcome);
  collect(before, rank.engine(), rank.backend());
  rank.gradient(1, outcome, std::numeric_limits<float>::infinity());
  rank.engine().update();
  collect(after, rank.engine(), rank.backend());
  EXPECT_EQ(before.state, after.state);
}

}  // namespace
}  // namespace shoal::test
