#include "planner/measured_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kHeader =
    "gpus,global_batch,micro_batch,n_embd,n_head,n_layer,block_size,tensor,data,pipeline,step_ms\n";

class MeasuredSteps : public ::testing::Test {
 protected:
  fs::path table(const std::string& text) {
    const auto file =
        fs::temp_directory_path() /
        (std::string("shoal-steps-") + ::testing::UnitTest::GetInstance()->current_test_info()->name() +
         std::to_string(::getpid()) + ".csv");
    std::ofstream(file) << text;
    return file;
  }
  std::string problem(const std::string& text) {
    const auto file = table(text);
    try {
      read_measured_steps(file);
    } catch (const UserError& error) {
      fs::remove(file);
      return error.what();
    }
    fs::remove(file);
    return "none";
  }
};

TEST_F(MeasuredSteps, AreReadInAnyOrderOfColumns) {
  const auto file = table(
      "step_ms,gpus,tensor,data,pipeline,global_batch,micro_batch,n_embd,n_head,n_layer,block_size\n"
      "12.5,4,2,1,2,8,2,1024,16,12,1024\r\n");
  const auto steps = read_measured_steps(file);
  fs::remove(file);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].tensor, 2);
  EXPECT_EQ(steps[0].n_layer, 12);
  EXPECT_DOUBLE_EQ(steps[0].seconds, 0.0125);
}

TEST_F(MeasuredSteps, OfBadTablesNameTheRowAndTheReason) {
  EXPECT_THAT(problem("gpus,tensor\n"), HasSubstr(":1: the column global_batch is missing"));
  const std::string header = kHeader;
  EXPECT_THAT(problem(header + "4,8,2,1024,16,12,1024,2,1,1,9\n"),
              HasSubstr(":2: tensor 2 x data 1 x pipeline 1 are not 4 GPUs"));
  // More than 2^32 GPUs, and more than 2^64.
  EXPECT_THAT(problem(header + "131073,65537,1,65537,65537,1,1024,65537,65537,1,9\n"),
              HasSubstr("are not 131073 GPUs"));
  EXPECT_THAT(problem(header + "1,16777216,1,1024,16,16777216,1024,16777216,16777216,16777216,9\n"),
              HasSubstr("are not 1 GPUs"));
  EXPECT_THAT(problem(header + "1,8,2,1024,16,12,1024,1,1,1,9\n1,8,3,1024,16,12,1024,1,1,1,9\n"),
              HasSubstr(":3: 8 sequences do not divide"));
  EXPECT_THAT(problem(header + "1,8,2,1024,16,12,1024,1,1,1,fast\n"), HasSubstr("step_ms is \"fast\""));
  EXPECT_THAT(problem(header + "1,8,2,1024,16,12,1024,1,1,1\n"), HasSubstr("10 cells, but 11 columns"));
  EXPECT_THAT(problem(header + "1,8,2,-1024,16,12,1024,1,1,1,9\n"), HasSubstr("n_embd is \"-1024\""));
  EXPECT_THAT(problem(header), HasSubstr("has no rows"));
}

// A step of one node.
const MeasuredStep kNode{.gpus = 8,
                         .global_batch = 64,
                         .micro_batch = 4,
                         .n_embd = 2048,
                         .n_head = 16,
                         .n_layer = 24,
                         .block_size = 1024,
                         .tensor = 1,
                         .data = 8};

Cluster cluster() { return read_cluster(fs::path(SHOAL_SOURCE_DIR) / "configs/clusters/a100.toml"); }

// A step whose block was measured, on a network that takes no time: the passes one after another, and the
// update of what the first stage holds.
TEST_F(MeasuredSteps, AddUpByHand) {
  auto c = cluster();
  for (auto* link : {&c.inside, &c.between, &c.measured.message}) *link = {.latency = 0, .bandwidth = 1e30};
  c.measured.update = 1e-9;
  c.measured.blocks = {{.n_embd = 1024,
                        .n_head = 16,
                        .block_size = 512,
                        .micro_batch = 4,
                        .tensor = 1,
                        .block = 0.003,
                        .ends = 0.002}};
  MeasuredStep step{.gpus = 1,
                    .global_batch = 4,
                    .micro_batch = 4,
                    .n_embd = 1024,
                    .n_head = 16,
                    .n_layer = 12,
                    .block_size = 512};
  const double pass = 12 * 0.003 + 0.002, block = 12.0 * 1024 * 1024 * 1e-9,
               ends = (50304.0 + 512) * 1024 * 1e-9;
  EXPECT_NEAR(predict_measured(step, c), pass + 12 * block + ends, 1e-9);
  step.global_batch = 12;
  EXPECT_NEAR(predict_measured(step, c), 3 * pass + 12 * block + ends, 1e-9);
  step.global_batch = 4;
  step.gpus = step.pipeline = 2;
  EXPECT_NEAR(predict_measured(step, c), pass + 6 * block + ends, 1e-9);
}

// A block that was measured far away says nothing, wherever it is among the rest.
TEST_F(MeasuredSteps, BlocksFarAwayDoNotCount) {
  auto c = cluster();
  const MeasuredBlock near{.n_embd = 2048,
                           .n_head = 16,
                           .block_size = 1024,
                           .micro_batch = 2,
                           .tensor = 1,
                           .block = 0.02,
                           .ends = 0.05};
  auto far = near;
  far.n_embd = 128;
  far.block = 5;
  c.measured.blocks = {};
  const double roofline = predict_measured(kNode, c);
  c.measured.blocks = {far};
  EXPECT_EQ(predict_measured(kNode, c), roofline);
  c.measured.blocks = {near};
  const double by_one = predict_measured(kNode, c);
  EXPECT_NE(by_one, roofline);
  for (const auto& blocks : {std::vector{far, near}, {near, far}}) {
    c.measured.blocks = blocks;
    EXPECT_EQ(predict_measured(kNode, c), by_one);
  }
}

// The first stage has a tenth of the ends, the last one the rest, and a third of each is forward. The last
// stage waits for one forward pass of the first, which waits for it in the end.
TEST_F(MeasuredSteps, StagesOverlapByHand) {
  auto c = cluster();
  for (auto* link : {&c.inside, &c.between, &c.measured.message}) *link = {.latency = 0, .bandwidth = 1e30};
  c.measured.update = 0;
  c.measured.blocks = {{.n_embd = 1024,
                        .n_head = 16,
                        .block_size = 512,
                        .micro_batch = 4,
                        .tensor = 1,
                        .block = 0.004,
                        .ends = 0.03}};
  const MeasuredStep step{.gpus = 2,
                          .global_batch = 12,
                          .micro_batch = 4,
                          .n_embd = 1024,
                          .n_head = 16,
                          .n_layer = 2,
                          .block_size = 512,
                          .pipeline = 2};
  // First: 0.001 + 0.001 forward, 0.003 + 0.002 backward. Last: 0.01 and 0.021, which three times are the
  // critical path.
  EXPECT_NEAR(predict_measured(step, c), 0.002 + 3 * (0.010 + 0.021) + 0.005, 1e-9);
}

// Twice the micro-batches take about twice the time of the passes, which is nearly all of the step.
TEST_F(MeasuredSteps, GrowWithTheirWork) {
  MeasuredStep step = kNode;
  const auto c = cluster();
  const double one = predict_measured(step, c);
  step.global_batch = 128;
  EXPECT_NEAR(predict_measured(step, c) / one, 2, 0.2);
  step.n_layer = 48;
  EXPECT_NEAR(predict_measured(step, c) / one, 4, 0.8);
}

// A faster network never makes a step slower, and a larger model is never faster.
TEST_F(MeasuredSteps, AreMonotone) {
  MeasuredStep step{.gpus = 64,
                    .global_batch = 512,
                    .micro_batch = 1,
                    .n_embd = 6144,
                    .n_head = 48,
                    .n_layer = 40,
                    .block_size = 2048,
                    .tensor = 8,
                    .data = 4,
                    .pipeline = 2};
  auto c = cluster();
  const double before = predict_measured(step, c);
  c.between.bandwidth *= 4;
  EXPECT_LE(predict_measured(step, c), before);
  step.n_embd = 12288;
  step.n_head = 96;
  EXPECT_GT(predict_measured(step, c), 2 * before);
}

TEST_F(MeasuredSteps, NameWhatTheClusterLacks) {
  const auto expect_missing = [](const MeasuredStep& step, const Cluster& c, const char* key) {
    EXPECT_THAT(
        [&] { predict_measured(step, c); },
        ::testing::ThrowsMessage<UserError>(HasSubstr("a100.toml: " + std::string(key) + " is missing")));
  };
  auto c = cluster();
  c.measured.block_flops = 0;
  expect_missing(kNode, c, "measured.block_tflops");
  c = cluster();
  c.measured.message = {};
  predict_measured(kNode, c);
  auto stages = kNode;
  stages.data = 4;
  stages.pipeline = 2;
  expect_missing(stages, c, "measured.message.gb_s");
}

// Errors and regret of rows whose times are known.
TEST_F(MeasuredSteps, RegretIsOfTheChosenLayout) {
  const auto c = cluster();
  MeasuredStep fast = kNode;
  auto slow = fast;
  slow.tensor = 8;
  slow.data = 1;
  ASSERT_LT(predict_measured(fast, c), predict_measured(slow, c));
  fast.seconds = 1.1;
  slow.seconds = 1.0;  // the prediction chooses the other
  const auto compared = compare_steps({fast, slow}, c);
  ASSERT_EQ(compared.workloads.size(), 1u);
  EXPECT_NEAR(compared.worst_regret, 0.1, 1e-12);
  EXPECT_NEAR(compared.mean_regret, 0.1, 1e-12);
  EXPECT_NEAR(compared.errors[0], predict_measured(fast, c) / 1.1 - 1, 1e-12);
}

}  // namespace
}  // namespace shoal
