// Tests of resolve_layout() and of ranks_to_start().
#include "config/layout.h"
#include "config/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/layouts.h"
#include "data/temp_folder.h"
#include "launch/ranks.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

int micro_batch(Config config, int ranks) {
  resolve_layout(config, ranks);
  EXPECT_EQ(config.parallel.data, ranks / config.parallel.pipeline);
  return config.train.micro_batch;
}

TEST(Layout, TheMicroBatchIsTheLargestOfWhichEveryRankGetsOne) {
  EXPECT_EQ(micro_batch(config_of(24), 1), 24);
  EXPECT_EQ(micro_batch(config_of(24), 4), 6);
  EXPECT_EQ(micro_batch(config_of(24), 5), 4);  // six micro-batches
  EXPECT_EQ(micro_batch(config_of(24), 24), 1);
  EXPECT_EQ(micro_batch(config_of(7), 2), 1);
  EXPECT_EQ(micro_batch(config_of(24, 3), 4), 3);  // the given one
  // In a pipeline of two stages: eight for each data rank, or fewer where there are fewer sequences.
  auto pipeline = config_of(64);
  pipeline.parallel.pipeline = 2;
  EXPECT_EQ(micro_batch(pipeline, 2), 8);
  EXPECT_EQ(micro_batch(pipeline, 4), 4);
  EXPECT_EQ(micro_batch(pipeline, 32), 1);
}

TEST(Layout, WithLayoutDeterminismTheMicroBatchIsTheSameForUpToEightRanks) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(micro_batch(config_of(64, 0, Determinism::layout), ranks), 8);
    EXPECT_EQ(micro_batch(config_of(20, 0, Determinism::layout), ranks), 2);
  }
  for (const int ranks : {1, 2, 5}) EXPECT_EQ(micro_batch(config_of(5, 0, Determinism::layout), ranks), 1);
}

std::string layout_error(Config config, int ranks) {
  return user_error([&] { resolve_layout(config, ranks); });
}

TEST(Layout, RanksThatCannotShareAStepAreRefused) {
  EXPECT_THAT(layout_error(config_of(8), 9),
              AllOf(HasSubstr("9 ranks cannot share the 8 sequences"), HasSubstr("at most 8")));
  EXPECT_THAT(layout_error(config_of(12, 6), 5),
              AllOf(HasSubstr("5 ranks cannot share the 2 micro-batches"), HasSubstr("at most 2"),
                    HasSubstr("train.micro_batch=2")));
  EXPECT_THAT(layout_error(config_of(64, 0, Determinism::layout), 16), HasSubstr("set train.micro_batch=4"));
  auto config = config_of(8);
  config.parallel.data = 3;
  EXPECT_THAT(layout_error(config, 2), AllOf(HasSubstr("parallel.data = 3"), HasSubstr("2 are")));
  config = config_of(8);
  config.parallel.replicate = 3;
  EXPECT_THAT(layout_error(config, 4), HasSubstr("parallel.replicate = 3 does not divide the 4 "));
}

TEST(Mesh, DataRanksAreThoseThatAreLeft) {
  auto config = mesh_of(2, 0, 3);
  resolve_layout(config, 24);
  EXPECT_EQ(config.parallel.data, 4);
  EXPECT_EQ(config.train.micro_batch, 1);  // six for each data rank; eight would be better, four per stage
  EXPECT_EQ(make_plan(config, kModel).mesh, (MeshShape{.pipeline = 2, .data = 4, .tensor = 3}));
  EXPECT_EQ(make_plan(config, kModel).pipeline_options().micro_batches, 6);
  EXPECT_EQ(make_plan(config, kModel).engine_options().micro_batches, 24);
}

TEST(Mesh, OtherNumbersOfRanksAreRefusedWithWhatWouldDo) {
  EXPECT_THAT(layout_error(mesh_of(2, 0, 3), 8),
              AllOf(HasSubstr("parallel.tensor = 3 x parallel.pipeline = 2 ask for a multiple of 6 ranks"),
                    HasSubstr("8 are started"), HasSubstr("start 6 or 12")));
  EXPECT_THAT(layout_error(mesh_of(1, 0, 4), 2), HasSubstr("but 2 are started; start 4, or change it"));
  EXPECT_THAT(
      layout_error(mesh_of(2, 2, 2), 4),
      AllOf(HasSubstr("parallel.data = 2 x parallel.tensor = 2 x parallel.pipeline = 2 ask for 8 ranks"),
            HasSubstr("set parallel.data=0 to take any multiple of 4")));
  EXPECT_THAT(
      layout_error(mesh_of(2, 0, 1), 50),
      AllOf(HasSubstr("25 data-parallel ranks cannot share the 24 sequences"), HasSubstr("at most 48")));
  auto config = mesh_of(1, 0, 2);
  config.parallel.replicate = 4;
  EXPECT_THAT(layout_error(config, 12), HasSubstr("does not divide the 6 data-parallel ranks"));
}

TEST(Workers, AreGroupsOfNeighbouringRanks) {
  auto config = workers_of("exp", 48);
  config.gossip.worker_size = 2;
  config.parallel.tensor = 3;
  config.parallel.pipeline = 2;
  resolve_layout(config, 48);
  EXPECT_EQ(config.parallel.data, 8);
  EXPECT_EQ(worker_count(config), 4);
  EXPECT_EQ(make_plan(config, kModel).mesh, (MeshShape{.pipeline = 2, .data = 2, .tensor = 3, .workers = 4}));
  // Each data rank has six of a worker's twelve sequences.
  EXPECT_EQ(config.train.micro_batch, 1);
  EXPECT_EQ(make_plan(config, kModel).micro_batches(), 12);
  EXPECT_EQ(make_plan(config, kModel).pipeline_options().micro_batches, 6);
  EXPECT_EQ(make_plan(config, kModel).engine_options().micro_batches, 12);
  EXPECT_EQ(make_plan(config, kModel).engine_options().gossip->topology.workers, 4);
  EXPECT_EQ(mesh_text(make_plan(config, kModel)), "4 workers x 2 stages x 2 data x 3 tensor ranks");

  config = workers_of("exp");
  resolve_layout(config, 4);
  EXPECT_EQ(config.train.micro_batch, 4);  // a worker's whole share
  EXPECT_EQ(mesh_text(make_plan(config, kModel)), "4 workers");
  config = workers_of("exp");
  config.gossip.worker_size = 4;
  resolve_layout(config, 4);  // a single worker, without averaging
  EXPECT_EQ(worker_count(config), 1);
  EXPECT_EQ(mesh_text(make_plan(config, kModel)), "");
}

TEST(Workers, ThatShareANodeAreKnownFromTheLauncher) {
  const auto on_a_node = [](int ranks, int ranks_per_host, int worker_size = 1, int given = 0) {
    auto config = workers_of("complete");
    config.gossip.worker_size = worker_size;
    config.gossip.local_size = given;
    resolve_layout(config, ranks, ranks_per_host);
    return config.gossip.local_size;
  };
  EXPECT_EQ(on_a_node(8, 4), 4);
  EXPECT_EQ(on_a_node(8, 4, 2), 2);
  EXPECT_EQ(on_a_node(8, 2, 4), 1);  // a worker on two hosts
  EXPECT_EQ(on_a_node(8, 4, 1, 2), 2);
  // On one host, or unknown hosts: the topology's default.
  EXPECT_EQ(on_a_node(8, 8), 1);
  EXPECT_EQ(on_a_node(8, 0), 1);
}

TEST(Workers, ThatCannotBeAreRefused) {
  EXPECT_EQ(layout_error(workers_of("exp", 10), 4),
            "train.global_batch = 10 cannot be divided evenly among 4 workers; set it to 8 or 12");
  EXPECT_EQ(layout_error(workers_of("exp", 2), 4),
            "train.global_batch = 2 cannot be divided evenly among 4 workers; set it to 4");
  EXPECT_EQ(
      layout_error(workers_of("exp", 24, 4), 4),
      "6 micro-batches of a step (train.global_batch = 24, train.micro_batch = 4) cannot be divided evenly "
      "among 4 workers; set train.micro_batch=3");
  auto of_two = workers_of("ring", 20, 5);
  of_two.gossip.worker_size = 2;
  EXPECT_THAT(layout_error(of_two, 8), HasSubstr("8 ranks cannot share the 4 micro-batches"));
  EXPECT_THAT(layout_error(of_two, 8), HasSubstr("set train.micro_batch=1"));
  of_two.train.micro_batch = 1;
  EXPECT_EQ(micro_batch(of_two, 8), 1);
  EXPECT_EQ(layout_error(workers_of("exp", 24), 6),
            "topology exp needs a power of two workers, not 6; 4 or 8 workers would do");
  EXPECT_EQ(layout_error(workers_of("ring", 15), 3),
            "topology ring needs an even number of workers, not 3; 2 or 4 workers would do");
  EXPECT_THAT(layout_error(workers_of("alternating-exp-ring", 12), 6),
              AllOf(HasSubstr("a power of two nodes"), HasSubstr("not 6 workers with 2 on a node"),
                    HasSubstr("4 or 8 workers would do")));
  EXPECT_THAT(layout_error(workers_of("rings"), 4), HasSubstr("did you mean ring?"));
  auto config = workers_of("alternating-exp-ring", 8);
  config.gossip.local_size = 1;
  EXPECT_THAT(layout_error(config, 4),
              HasSubstr("say how many share one with gossip.local_size (--local-size)"));
  config = workers_of("exp");
  config.gossip.worker_size = 3;
  EXPECT_EQ(layout_error(config, 4),
            "gossip.worker_size = 3 does not divide the 4 data-parallel ranks; workers are of one size");
  config.gossip.worker_size = 2;
  config.parallel.replicate = 4;
  EXPECT_EQ(layout_error(config, 4),
            "parallel.replicate = 4 does not divide the 2 data-parallel ranks of a worker; groups are of one "
            "size");
  // A worker's data ranks need a micro-batch each.
  config = workers_of("exp", 8, 2);
  config.gossip.worker_size = 4;
  EXPECT_THAT(layout_error(config, 8), HasSubstr("8 ranks cannot share the 4 micro-batches"));
}

TEST(Workers, OfATopologyOfOnesOwn) {
  const TempFolder folder;
  const auto file = folder.write("rounds.toml", "rounds = [[[0, 1], [2]], [[0], [1, 2]]]\n").string();
  auto config = workers_of("file:" + file, 6);
  resolve_layout(config, 3);
  EXPECT_EQ(gossip_topology(config).period(), 2);
  EXPECT_THAT(layout_error(workers_of("file:" + file, 4), 4),
              HasSubstr("is a topology of 3 workers, not of 4"));
}

TEST(RanksToStart, AreThoseOfTheOptionInAStepOfOneTask) {
  ::setenv("PMIX_RANK", "0", 1);
  EXPECT_EQ(launcher_of(0).kind, Launcher::Kind::open_mpi);
  EXPECT_EQ(launcher_of(2).kind, Launcher::Kind::alone);
  ::setenv("SLURM_STEP_ID", "0", 1);
  ::setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  EXPECT_EQ(launcher_of(2).kind, Launcher::Kind::open_mpi);
  for (const char* name : {"PMIX_RANK", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"}) ::unsetenv(name);
}

TEST(RanksToStart, ComeFromTheOptionTheLauncherOrTheConfig) {
  const Launcher alone, mpi{Launcher::Kind::open_mpi, 0, 4, "mpirun"};
  Config config;
  EXPECT_EQ(ranks_to_start(config, 0, alone), 1);
  EXPECT_EQ(ranks_to_start(config, 3, alone), 3);
  EXPECT_EQ(ranks_to_start(config, 0, mpi), 4);
  EXPECT_EQ(ranks_to_start(config, 4, mpi), 4);
  EXPECT_THAT(user_error([&] { ranks_to_start(config, 3, mpi); }),
              AllOf(HasSubstr("--ranks 3"), HasSubstr("mpirun started 4 ranks")));
  config.parallel.data = 2;
  EXPECT_EQ(ranks_to_start(config, 0, alone), 2);
  EXPECT_EQ(ranks_to_start(config, 2, alone), 2);
  EXPECT_THAT(user_error([&] { ranks_to_start(config, 1, alone); }),
              AllOf(HasSubstr("parallel.data = 2"), HasSubstr("--ranks started 1 rank")));
  EXPECT_THAT(user_error([&] { ranks_to_start(config, 0, mpi); }), HasSubstr("mpirun started 4 ranks"));
}

TEST(RanksToStart, OfAMeshAreAllOfIt) {
  const Launcher alone, mpi{Launcher::Kind::open_mpi, 0, 6, "mpirun"};
  EXPECT_EQ(ranks_to_start(mesh_of(2, 3, 2), 0, alone), 12);
  EXPECT_EQ(ranks_to_start(mesh_of(2, 0, 2), 0, alone), 4);  // one data rank
  EXPECT_EQ(ranks_to_start(mesh_of(2, 0, 2), 8, alone), 8);
  EXPECT_EQ(ranks_to_start(mesh_of(3, 0, 2), 0, mpi), 6);
  EXPECT_THAT(
      user_error([&] { ranks_to_start(mesh_of(2, 0, 2), 0, mpi); }),
      AllOf(HasSubstr("a multiple of 4 ranks, but mpirun started 6 ranks"), HasSubstr("start 4 or 8")));
  EXPECT_THAT(user_error([&] { ranks_to_start(mesh_of(1, 3, 2), 4, alone); }),
              AllOf(HasSubstr("ask for 6 ranks, but --ranks started 4 ranks"), HasSubstr("parallel.data=0")));
  EXPECT_THAT(user_error([&] { ranks_to_start(mesh_of(1000, 1 << 20, 4096), 0, alone); }),
              HasSubstr("too many"));
}

}  // namespace
}  // namespace shoal::test
