// A sample of a step passes through its parts in order, and through the two that stand for the other blocks
// once for each.
#include "planner/sample_step.h"

#include <gtest/gtest.h>

#include "config/layout.h"
#include "ops/dry/dry_backend.h"

namespace shoal {
namespace {

RunPlan plan_of(const std::vector<std::string>& settings, int ranks = 1) {
  auto config = parse_config(R"(
data.dir = "none"
run.name = "sample"
model = { n_layer = 5, n_head = 2, n_embd = 32, block_size = 16, vocab_size = 65 }
train = { global_batch = 8, micro_batch = 2, steps = 1 }
)",
                             "test", settings);
  resolve_layout(config, ranks);
  return make_plan(config);
}

TEST(SampleStep, KeepsTheBlocksOfThePlan) { EXPECT_EQ(sample_of(plan_of({})).model.n_layer, 5); }

TEST(SampleStep, EntersItsPartsInOrder) {
  using enum StepPart;
  for (const auto& settings : {std::vector<std::string>{}, {"train.recompute=block"}}) {
    auto sample = sample_of(plan_of(settings));
    sample.model.n_layer = 4;
    DryBackend backend;
    SampleStep step(backend, sample);
    std::vector<std::pair<int, StepPart>> entered, expected;
    step.run([&](int pass, StepPart part) { entered.emplace_back(pass, part); });
    for (int pass = 0; pass < kSamplePasses; ++pass) {
      for (const auto part :
           {embedding_forward, first_block_forward, block_forward, block_forward, block_forward, head,
            last_block_backward, block_backward, block_backward, block_backward, embedding_backward})
        expected.emplace_back(pass, part);
    }
    expected.emplace_back(kSamplePasses, embedding_forward);  // the update
    EXPECT_EQ(entered, expected);
    EXPECT_EQ(step.count(head), 1);
    EXPECT_EQ(step.count(block_forward), 3);
    EXPECT_EQ(step.count(block_backward), 3);
  }
}

// Keeps the tokens and targets that it gets, and the first class of the embedding.
struct TokenBackend final : DryBackend {
  void copy_from_host(const Tensor& to, const void* host) override {
    if (to.dtype == DType::i32 && to.count() > 1) tokens.push_back(*static_cast<const std::int32_t*>(host));
  }
  void embedding_forward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t first,
                         const Dropout&, const Tensor&) override {
    first_class = first;
  }
  std::vector<std::int32_t> tokens;
  std::int64_t first_class = 0;
};

// Rows of other classes would be zeros, and nothing would add another rank's.
TEST(SampleStep, TokensAreOfTheSampledRanksClasses) {
  TokenBackend backend;
  SampleStep step(backend, sample_of(plan_of({"parallel.tensor=2"}, 2)));
  step.run([](int, StepPart) {});
  EXPECT_EQ(backend.first_class, 32) << "of 65";
  EXPECT_EQ(backend.tokens, std::vector<std::int32_t>(2 * kSamplePasses, 32));
}

TEST(SampleStep, FewerBlocksAreFrozenWhereAllAre) {
  GptConfig model{.n_layer = 6};
  const auto frozen = [&](const std::vector<std::string>& patterns, int blocks) {
    model.frozen = patterns;
    EXPECT_EQ(with_blocks(model, blocks).n_layer, blocks);
    return with_blocks(model, blocks).frozen;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(frozen({"block.[0-2]"}, 2), Names{});
  EXPECT_EQ(frozen({"block.[0-5]", "embed*"}, 2), (Names{"embedding", "block.*"}));
  EXPECT_EQ(frozen({"block.[0-5]", "head"}, 7), (Names{"block.*", "head"}));
  EXPECT_EQ(frozen({"block.[0-2]"}, 6), Names{"block.[0-2]"}) << "the same blocks";
}

// Muon's time goes into hidden matrices, where any are trained.
TEST(SampleStep, CountsWhatAnUpdateTakesItsTimeFor) {
  const auto updated = [](const std::vector<std::string>& settings) {
    return updated_elements(sample_of(plan_of(settings)));
  };
  EXPECT_GT(updated({"optim.name=muon"}), 0);
  EXPECT_LT(updated({"optim.name=muon"}), updated({}));
  for (const char* few : {"lora.rank=2", "optim.frozen=block.*"}) {
    EXPECT_GT(updated({few}), 0) << few;
    EXPECT_EQ(updated({few, "optim.name=muon"}), updated({few})) << few;
  }
}

}  // namespace
}  // namespace shoal
