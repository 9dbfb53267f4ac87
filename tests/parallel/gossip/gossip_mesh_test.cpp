// Workers of several ranks: the layout of a worker does not change the run.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <mutex>
#include <set>

#include "parallel/gossip/topology_schemes.h"
#include "parallel/gossip_run.h"
#include "parallel/rounding_bound.h"

namespace shoal::test {
namespace {

struct GossipLayout {
  MeshShape mesh;  // of a worker
  int zero = 0, replicate = 1;
  bool sequence = false;
};

std::string description(const GossipLayout& layout) {
  return fmt::format("workers of {} x {} x {}{}, ZeRO {}, {} replicas", layout.mesh.pipeline,
                     layout.mesh.data, layout.mesh.tensor, layout.sequence ? " with sequence" : "",
                     layout.zero, layout.replicate);
}

RanksRun gossip_mesh_run(const GossipLayout& layout, DType compute = DType::f32, int workers = 2) {
  auto run = gossip_run(make_topology("exp", workers, 1));
  run.mesh = layout.mesh;
  run.mesh.workers = workers;
  run.sequence = layout.sequence;
  run.engine.zero = layout.zero;
  run.engine.replicate = layout.replicate;
  run.engine.compute = compute;
  run.engine.layout_exact = true;
  run.engine.micro_batches = 4;
  run.engine.gossip->bucket_bytes = kSomeBuckets;
  run.steps = 10;
  return run;
}

const GossipLayout kOfOneRank{};
const std::vector<GossipLayout> kLayouts = {{{.data = 2}, 0},
                                            {{.data = 2}, 1},
                                            {{.data = 2}, 2},
                                            {{.data = 2}, 3},
                                            {{.data = 4}, 1, 2},
                                            {{.data = 3}, 3},
                                            {{.pipeline = 2}},
                                            {{.pipeline = 3}},
                                            {{.pipeline = 2, .data = 2}, 1},
                                            {{.pipeline = 2, .data = 2}, 3}};
const std::vector<GossipLayout> kTensorLayouts = {{{.data = 2, .tensor = 2}, 2},
                                                  {{.pipeline = 2, .tensor = 2}},
                                                  {{.pipeline = 2, .data = 2, .tensor = 2}, 3}};

void expect_same(const std::vector<GossipLayout>& layouts, const GossipLayout& reference, DType compute) {
  const auto expected = bytes_of(train_workers(gossip_mesh_run(reference, compute)));
  for (auto layout : layouts) {
    layout.sequence = reference.sequence;
    EXPECT_TRUE(bytes_of(train_workers(gossip_mesh_run(layout, compute))) == expected) << description(layout);
  }
}

TEST(GossipMesh, WorkersOfSeveralRanksEqualWorkersOfOne) {
  expect_same(kLayouts, kOfOneRank, DType::f32);
  expect_same(kLayouts, kOfOneRank, DType::bf16);
}

TEST(GossipMesh, WorkersOfTensorRanksEqualThoseOfOneTensorGroup) {
  for (const bool sequence : {false, true}) {
    const GossipLayout group{.mesh = {.tensor = 2}, .sequence = sequence};
    expect_same(kTensorLayouts, group, DType::f32);
    expect_same(kTensorLayouts, group, DType::bf16);
  }
}

// The distance after the last step, which every rank is told alike.
double consensus_distance(const RanksRun& run) {
  std::set<double> told;
  std::mutex mutex;
  train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
    for (int step = 0; step < run.steps; ++step) rank.step(step, outcome);
    const double distance = rank.engine().show_average();
    rank.engine().drop_average();
    const std::lock_guard lock(mutex);
    told.insert(distance);
  });
  EXPECT_EQ(told.size(), 1u);
  return *told.begin();
}

TEST(GossipMesh, TheConsensusDistanceHasTheSameBitsInEveryLayout) {
  const double of_one = consensus_distance(gossip_mesh_run(kOfOneRank));
  EXPECT_GT(of_one, 0);
  for (const auto& layout : kLayouts)
    EXPECT_EQ(consensus_distance(gossip_mesh_run(layout)), of_one) << description(layout);
  const double of_group = consensus_distance(gossip_mesh_run({.mesh = {.tensor = 2}}));
  for (const auto& layout : kTensorLayouts)
    EXPECT_EQ(consensus_distance(gossip_mesh_run(layout)), of_group) << description(layout);
}

// Averaging adds two roundings of the parameters per step, equal in both runs, and amplifies no differences.
TEST(GossipMesh, TensorRanksChangeNoMoreThanRounding) {
  for (const bool sequence : {false, true}) {
    auto run = gossip_mesh_run({.mesh = {.tensor = 2}, .sequence = sequence});
    run.model = {.n_layer = 4,
                 .n_head = 3,
                 .n_embd = 24,
                 .block_size = 8,
                 .vocab_size = 61,
                 .dropout = 0.1,
                 .bias = true};
    run.steps = 50;
    run.batches = 4;
    run.lr = 1e-3;
    run.evaluate_every = 10;
    auto one = run;
    one.mesh = {.workers = 2};
    one.sequence = false;
    const auto expected = train_workers(one), workers = train_workers(run);
    for (std::size_t w = 0; w < workers.size(); ++w) {
      EXPECT_TRUE(parameters_of(workers[w]) != parameters_of(expected[w]));
      RoundingBound(one, expected[w]).expect_within(workers[w]);
    }
  }
}

// Four workers, each with a mesh: as many ranks as a small cluster.
TEST(GossipMesh, ManyWorkersOfManyRanks) {
  const auto expected = bytes_of(train_workers(gossip_mesh_run(kOfOneRank, DType::f32, 4)));
  const GossipLayout layout{.mesh = {.pipeline = 2, .data = 2}, .zero = 2};
  EXPECT_TRUE(bytes_of(train_workers(gossip_mesh_run(layout, DType::f32, 4))) == expected);
}

// Sums in the faster order.
TEST(GossipMesh, RepeatsItselfInTheDefaultOrder) {
  for (auto layout : kLayouts) {
    auto run = gossip_mesh_run(layout);
    run.engine.layout_exact = false;
    EXPECT_TRUE(bytes_of(train_workers(run)) == bytes_of(train_workers(run))) << description(layout);
  }
}

TEST(GossipMesh, StateOnDiskIsExactToo) {
  const auto expected = bytes_of(train_workers(gossip_mesh_run(kOfOneRank)));
  for (const int zero : {0, 2, 3}) {
    auto run = gossip_mesh_run({.mesh = {.data = 2}, .zero = zero});
    run.engine.offload = testing::TempDir();
    EXPECT_TRUE(bytes_of(train_workers(run)) == expected) << "ZeRO " << zero;
  }
}

}  // namespace
}  // namespace shoal::test
