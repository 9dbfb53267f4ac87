// Tests of make_plan().
#include "config/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/layout.h"
#include "config/layouts.h"
#include "data/temp_folder.h"
#include "parallel/pipeline/stages.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The plan on as many ranks as the mesh of the config has.
RunPlan plan_of(Config config, const GptConfig& model) {
  const auto& parallel = config.parallel;
  resolve_layout(config, std::max(parallel.data, 1) * parallel.tensor * parallel.pipeline);
  return make_plan(config, model);
}

TEST(Workers, TellTheEngineOfBuckets) {
  auto config = workers_of("ring");
  config.gossip.bucket_mib = 2;
  config.gossip.clip = GossipClip::bucket;
  resolve_layout(config, 4);
  const auto gossip = plan_of(config, kModel).engine_options().gossip;
  EXPECT_EQ(gossip->bucket_bytes, 2 << 20);
  EXPECT_TRUE(gossip->clip_by_bucket);
  EXPECT_EQ(gossip->topology.period(), 2);
  EXPECT_FALSE(plan_of(config_of(8, 2), kModel).engine_options().gossip);
}

TEST(Workers, ThatAverageInGroupsSendWholeModels) {
  auto config = workers_of("exp");
  config.parallel.data = 4;
  config.outer.interval = 3;
  EXPECT_EQ(plan_of(config, kModel).engine.outer->interval, 3);
  config.outer.compress = "int4";
  EXPECT_THAT(
      user_error([&] { plan_of(config, kModel); }),
      AllOf(HasSubstr("outer.compress = \"int4\" needs gossip.topology=complete"), HasSubstr("\"exp\"")));
  config.gossip.topology = "complete";
  EXPECT_TRUE(plan_of(config, kModel).engine.outer);
}

TEST(Plan, StepsOfOneRankThatQueueTheSameWorkCanBeCaptured) {
  const auto can = [](const Config& config) { return plan_of(config, kModel).can_capture_steps(); };
  EXPECT_TRUE(can(mesh_of(1, 1, 1)));
  EXPECT_FALSE(can(mesh_of(1, 1, 2)));
  EXPECT_FALSE(can(mesh_of(1, 2, 1)));
  auto config = mesh_of(1, 1, 1);
  config.parallel.zero = 3;
  EXPECT_FALSE(can(config));
  config = mesh_of(1, 1, 1);
  config.outer.interval = 2;
  EXPECT_FALSE(can(config));
}

TEST(Mesh, IsSaidInWords) {
  auto config = mesh_of(2, 4, 2);
  EXPECT_EQ(mesh_text(plan_of(config, kModel)), "2 stages x 4 data x 2 tensor ranks");
  config.parallel.sequence = true;
  EXPECT_EQ(mesh_text(plan_of(config, kModel)),
            "2 stages x 4 data x 2 tensor ranks with sequence parallelism");
  EXPECT_EQ(mesh_text(plan_of(mesh_of(1, 1, 2), kModel)), "2 tensor ranks");
  EXPECT_EQ(mesh_text(plan_of(mesh_of(3, 1, 1), kModel)), "3 stages");
  EXPECT_EQ(mesh_text(plan_of(mesh_of(1, 8, 1), kModel)), "");
}

TEST(Mesh, ModelsThatCannotBeSpreadAreRefused) {
  const auto refusal = [](Config config, const GptConfig& model) {
    resolve_layout(config, config.parallel.data * config.parallel.tensor * config.parallel.pipeline);
    return user_error([&] { make_plan(config, model); });
  };
  EXPECT_THAT(
      refusal(mesh_of(1, 1, 5), kModel),
      AllOf(HasSubstr("parallel.tensor = 5"), HasSubstr("4 attention heads"), HasSubstr("at most 4")));
  EXPECT_THAT(refusal(mesh_of(7, 1, 1), kModel), HasSubstr("6 blocks cannot be cut into 7 ranges"));
  auto config = mesh_of(1, 1, 4);
  config.parallel.sequence = true;
  config.train.micro_batch = 1;
  EXPECT_THAT(refusal(config, kModel), AllOf(HasSubstr("the 10 tokens of a micro-batch do not divide"),
                                             HasSubstr("parallel.sequence=false")));
  config.train.micro_batch = 2;
  resolve_layout(config, 4);
  EXPECT_NO_THROW(make_plan(config, kModel));
}

TEST(Mesh, StagesHaveTheRangesInTurn) {
  auto config = mesh_of(2, 1, 2);
  EXPECT_EQ(plan_of(config, kModel).part({.pipeline = 1, .tensor = 1}).tensor,
            (TensorRank{.rank = 1, .size = 2, .sequence = false}));
  config.parallel.stages = {2, 4};
  EXPECT_EQ(plan_of(config, kModel).part({}).chunks, (std::vector<UnitRange>{{0, 3}}));
  EXPECT_EQ(plan_of(config, kModel).part({.pipeline = 1}).chunks, (std::vector<UnitRange>{{3, 8}}));
  EXPECT_EQ(stage_text(plan_of(config, kModel), 0), "embedding, block.0-1");
  EXPECT_EQ(stage_text(plan_of(config, kModel), 1), "block.2-5, head");

  config.parallel.schedule = ScheduleKind::interleaved;
  config.parallel.chunks = 2;
  config.parallel.stages = {1, 2, 1, 2};
  EXPECT_EQ(plan_of(config, kModel).part({}).chunks, (std::vector<UnitRange>{{0, 2}, {4, 5}}));
  EXPECT_EQ(stage_text(plan_of(config, kModel), 0), "embedding, block.0; block.3");
  EXPECT_EQ(stage_text(plan_of(config, kModel), 1), "block.1-2; block.4-5, head");
  config.parallel.stages.clear();  // balanced
  EXPECT_EQ(plan_of(config, kModel).ranges, balanced_ranges(kModel, 4));
}

TEST(Mesh, SequenceParallelismIsOfTensorRanks) {
  auto config = mesh_of(1, 2, 1);
  config.parallel.sequence = true;
  EXPECT_FALSE(plan_of(config, kModel).part({}).tensor.sequence);
  config.parallel.tensor = 2;
  EXPECT_TRUE(plan_of(config, kModel).part({}).tensor.sequence);
}

TEST(Layout, TheEngineIsToldAllOfIt) {
  auto config = config_of(12, 2, Determinism::layout);
  config.parallel.data = 2;
  config.parallel.zero = 2;
  config.parallel.replicate = 2;
  config.train.grad_clip = 0.5;
  config.optim.betas = {0.8, 0.7};
  auto options = plan_of(config, GptConfig{}).engine_options();
  EXPECT_EQ(options.micro_batches, 6);
  EXPECT_EQ(options.zero, 2);
  EXPECT_EQ(options.replicate, 2);
  EXPECT_TRUE(options.layout_exact);
  EXPECT_EQ(options.grad_clip, 0.5);
  EXPECT_EQ(std::get<AdamWConfig>(options.optimizer).beta2, 0.7);
  EXPECT_EQ(options.reduced, DType::f32);
  EXPECT_TRUE(options.offload.empty());
  config.run.dir = "runs";
  config.run.name = "a";
  config.parallel.offload = Offload::disk;
  config.parallel.reduce_dtype = DType::bf16;
  options = plan_of(config, GptConfig{}).engine_options();
  EXPECT_EQ(options.offload, "runs/a");
  EXPECT_EQ(options.reduced, DType::bf16);
  EXPECT_FALSE(options.on_host) << "the CPU backend's memory is the host's";
  config.train.backend = BackendKind::cuda;
  EXPECT_TRUE(plan_of(config, GptConfig{}).engine_options().on_host);
  config.parallel.offload = Offload::host;
  EXPECT_TRUE(plan_of(config, GptConfig{}).engine_options().on_host);
  EXPECT_TRUE(plan_of(config, GptConfig{}).engine_options().offload.empty());
  config.parallel.offload = Offload::none;
  EXPECT_FALSE(plan_of(config, GptConfig{}).engine_options().on_host);
}

TEST(Plan, TellsItsTypes) {
  auto config = config_of(12, 2);
  const auto text = [&] { return types_text(plan_of(config, kModel)); };
  EXPECT_EQ(text(), "float32");
  config.train.dtype = DType::bf16;
  EXPECT_EQ(text(), "bfloat16");
  config.train.gradient_dtype = DType::bf16;
  EXPECT_EQ(text(), "bfloat16 with gradients");
  config.train.residual_dtype = DType::bf16;
  EXPECT_EQ(text(), "bfloat16 with residual stream and gradients");
}

}  // namespace
}  // namespace shoal::test
