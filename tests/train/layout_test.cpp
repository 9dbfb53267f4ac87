// What the number of ranks decides, and how many are started.
#include "train/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/temp_folder.h"
#include "train/ranks.h"

namespace shoal::test {
namespace {

using shoal::testing::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

Config config_of(int global_batch, int micro_batch = 0, const std::string& deterministic = "off") {
  Config config;
  config.train.global_batch = global_batch;
  config.train.micro_batch = micro_batch;
  config.run.deterministic = deterministic;
  return config;
}

int micro_batch(Config config, int ranks) {
  resolve_layout(config, ranks);
  EXPECT_EQ(config.parallel.data, ranks);
  return config.train.micro_batch;
}

TEST(Layout, TheMicroBatchIsTheLargestOfWhichEveryRankGetsOne) {
  EXPECT_EQ(micro_batch(config_of(24), 1), 24);
  EXPECT_EQ(micro_batch(config_of(24), 4), 6);
  EXPECT_EQ(micro_batch(config_of(24), 5), 4);  // six of them
  EXPECT_EQ(micro_batch(config_of(24), 24), 1);
  EXPECT_EQ(micro_batch(config_of(7), 2), 1);
  EXPECT_EQ(micro_batch(config_of(24, 3), 4), 3);  // as it was given
}

TEST(Layout, WithLayoutDeterminismTheMicroBatchIsTheSameForUpToEightRanks) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(micro_batch(config_of(64, 0, "layout"), ranks), 8);
    EXPECT_EQ(micro_batch(config_of(20, 0, "layout"), ranks), 2);
  }
  for (const int ranks : {1, 2, 5}) EXPECT_EQ(micro_batch(config_of(5, 0, "layout"), ranks), 1);
}

std::string error_of(Config config, int ranks) {
  return user_error([&] { resolve_layout(config, ranks); });
}

TEST(Layout, RanksThatCannotShareAStepAreRefused) {
  EXPECT_THAT(error_of(config_of(8), 9),
              AllOf(HasSubstr("9 ranks cannot share the 8 sequences"), HasSubstr("at most 8")));
  EXPECT_THAT(error_of(config_of(12, 6), 5), AllOf(HasSubstr("5 ranks cannot share the 2 micro-batches"),
                                                   HasSubstr("at most 2"), HasSubstr("train.micro_batch=2")));
  EXPECT_THAT(error_of(config_of(64, 0, "layout"), 16), HasSubstr("set train.micro_batch=4"));
  auto config = config_of(8);
  config.parallel.data = 3;
  EXPECT_THAT(error_of(config, 2), AllOf(HasSubstr("parallel.data = 3"), HasSubstr("2 are")));
  config = config_of(8);
  config.parallel.replicate = 3;
  EXPECT_THAT(error_of(config, 4), HasSubstr("parallel.replicate = 3 does not divide the 4 "));
}

TEST(Layout, TheEngineIsToldAllOfIt) {
  auto config = config_of(12, 2, "layout");
  config.parallel.zero = 2;
  config.parallel.replicate = 2;
  config.train.grad_clip = 0.5;
  config.optim.betas = {0.8, 0.7};
  auto options = engine_options(config, GptConfig{});
  EXPECT_EQ(options.micro_batches, 6);
  EXPECT_EQ(options.zero, 2);
  EXPECT_EQ(options.replicate, 2);
  EXPECT_TRUE(options.layout_exact);
  EXPECT_EQ(options.grad_clip, 0.5);
  EXPECT_EQ(options.adamw.beta2, 0.7);
  EXPECT_EQ(options.reduced, DType::f32);
  EXPECT_TRUE(options.offload.empty());
  config.run.dir = "runs";
  config.run.name = "a";
  config.parallel.offload = "disk";
  config.parallel.reduce_dtype = "bfloat16";
  options = engine_options(config, GptConfig{});
  EXPECT_EQ(options.offload, "runs/a");
  EXPECT_EQ(options.reduced, DType::bf16);
}

TEST(RanksToStart, ComeFromTheOptionTheLauncherOrTheConfig) {
  const Launch alone, mpi{Launch::Kind::open_mpi, 0, 4, "mpirun"};
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

}  // namespace
}  // namespace shoal::test
