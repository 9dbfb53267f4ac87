// Adapters of low rank in every kind of layout: the same bytes as on one rank, and with tensor parallelism
// within rounding of it. Dropout acts on their inputs, too.
#include <fmt/format.h>

#include "parallel/gossip/topology_schemes.h"
#include "parallel/rounding_bound.h"

namespace shoal::test {
namespace {

RanksRun adapter_run(DType compute, bool frozen) {
  RanksRun run;
  run.model = {.n_layer = 4,
               .n_head = 4,
               .n_embd = 64,
               .block_size = 8,
               .vocab_size = 61,
               .dropout = 0.1,
               .bias = true,
               .lora = {.rank = 4, .alpha = 8, .dropout = 0.2, .targets = {true, true, true, true}}};
  if (frozen) run.model.frozen = {"embedding", "block.*", "head"};
  run.engine = {.compute = compute, .grad_clip = 0.1, .layout_exact = true, .micro_batches = 8};
  run.steps = 20;
  run.batches = 4;
  run.lr = 1e-3;
  run.evaluate_every = 10;
  return run;
}

struct AdapterLayout {
  MeshShape mesh;
  int zero = 0, replicate = 1;
  bool sequence = false;
  Recompute recompute = Recompute::none;
};

RanksRun in(const AdapterLayout& layout, RanksRun run) {
  run.mesh = layout.mesh;
  run.sequence = layout.sequence;
  run.engine.zero = layout.zero;
  run.engine.replicate = layout.replicate;
  run.recompute = layout.recompute;
  return run;
}

class AdapterParity : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, AdapterParity, testing::Values(DType::f32, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AdapterParity, LayoutsGiveTheSameBytes) {
  for (const bool frozen : {true, false}) {
    const auto run = adapter_run(GetParam(), frozen);
    const auto expected = train(run).bytes();
    const AdapterLayout layouts[] = {
        {.mesh = {.data = 2}},
        {.mesh = {.data = 2}, .zero = 1},
        {.mesh = {.data = 3}, .zero = 2, .recompute = Recompute::light},
        {.mesh = {.data = 4}, .zero = 3, .replicate = 2},
        {.mesh = {.data = 2}, .zero = 3, .recompute = Recompute::block},
        {.mesh = {.pipeline = 2}},
        {.mesh = {.pipeline = 2, .data = 2}, .zero = 3},
        {.mesh = {.pipeline = 4, .data = 2}, .zero = 2, .recompute = Recompute::gelu}};
    int n = 0;
    for (const auto& layout : layouts)
      EXPECT_TRUE(train(in(layout, run)).bytes() == expected) << "layout " << n++ << ", frozen " << frozen;
  }
}

TEST_P(AdapterParity, AStageMayHaveNothingThatIsTrained) {
  auto run = adapter_run(GetParam(), false);
  run.model.lora = {};
  run.model.frozen = {"embedding", "block.[0-2]"};
  const auto expected = train(run).bytes();
  for (const int zero : {0, 3}) {
    const AdapterLayout layout{.mesh = {.pipeline = 2, .data = 2}, .zero = zero};
    EXPECT_TRUE(train(in(layout, run)).bytes() == expected) << zero;
  }
}

// Products of an adapter have as many terms as those of its layer, and the rank; a factor of 2 covers them.
// Everything is trained here, since adapters alone learn too little for the bound to have a meaning.
TEST_P(AdapterParity, TensorRanksAreWithinRoundingOfOne) {
  const auto run = adapter_run(GetParam(), false);
  const RoundingBound bound(run, train(run));
  for (const bool sequence : {false, true}) {
    const AdapterLayout group{.mesh = {.tensor = 2}, .sequence = sequence};
    const auto expected = train(in(group, run));
    bound.expect_within(expected);
    auto layout = group;
    layout.mesh.pipeline = layout.mesh.data = 2;
    layout.zero = 3;
    EXPECT_TRUE(train(in(layout, run)).bytes() == expected.bytes()) << sequence;
  }
}

// The first gradient's norm of adapters alone, which have a part of a gradient on each tensor rank.
TEST_P(AdapterParity, TensorRanksAddTheirPartsOfGradients) {
  auto run = adapter_run(GetParam(), true);
  run.steps = 2;
  const auto one = train(run);
  const double relative = RoundingBound(run, one).gradient();
  for (const int tensor : {2, 4}) {
    for (const bool sequence : {false, true}) {
      const auto norms = train(in({.mesh = {.tensor = tensor}, .sequence = sequence}, run)).norms;
      EXPECT_NEAR(norms[0], one.norms[0], relative * one.norms[0]) << tensor << sequence;
    }
  }
}

TEST(AdapterGossip, WorkersAverageAdaptersAlone) {
  auto run = adapter_run(DType::f32, true);
  run.engine.layout_exact = false;
  run.mesh.workers = 2;
  run.engine.gossip = GossipOptions{.topology = make_topology("complete", 2, 1), .bucket_bytes = 4096};
  run.same_data = true;
  const auto both = train(run);
  auto alone = run;
  alone.mesh.workers = 1;
  alone.engine.gossip.reset();
  // Equal workers with equal data stay as one, since the mean of two equal numbers is exact.
  EXPECT_EQ(both.losses, train(alone).losses);
}

}  // namespace
}  // namespace shoal::test
