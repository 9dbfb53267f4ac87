// The layout does not change the run: engines on several ranks compared with one rank.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "comm/recording.h"
#include "core/error.h"
#include "ops/dry/dry_backend.h"
#include "parallel/data/data_engine.h"
#include "parallel/mesh.h"
#include "parallel/ranks_run.h"

namespace shoal::test {
namespace {

RanksRun exact(int ranks, int zero, int replicate = 1) {
  RanksRun run;
  run.mesh.data = ranks;
  run.engine = {
      .grad_clip = 0.1, .zero = zero, .replicate = replicate, .layout_exact = true, .micro_batches = 8};
  return run;
}

struct ShardedLayout {
  int ranks, zero, replicate = 1;
};
void PrintTo(const ShardedLayout& layout, std::ostream* out) {
  *out << layout.ranks << " ranks, ZeRO " << layout.zero << ", " << layout.replicate << " replicas";
}

std::string name_of(const testing::TestParamInfo<ShardedLayout>& info) {
  return fmt::format("{}ranks_zero{}_x{}", info.param.ranks, info.param.zero, info.param.replicate);
}

class LayoutExact : public testing::TestWithParam<ShardedLayout> {
 protected:
  static RanksRun with(RanksRun run, const ShardedLayout& layout) {
    run.mesh.data = layout.ranks;
    run.engine.zero = layout.zero;
    run.engine.replicate = layout.replicate;
    return run;
  }
  // The run on one rank, computed once for all layouts.
  static const std::string& one_rank(const RanksRun& run, const std::string& name) {
    static std::map<std::string, std::string> known;
    auto& bytes = known[name];
    if (bytes.empty()) bytes = train(with(run, {1, 0})).bytes();
    return bytes;
  }
  void compare(const RanksRun& run, const std::string& name) const {
    const bool same = train(with(run, GetParam())).bytes() == one_rank(run, name);
    EXPECT_TRUE(same) << "losses, norms, parameters or moments differ from those of one rank";
  }
};

// Dropout is on, and clipping acts at every step (see ClippingActs).
TEST_P(LayoutExact, FiftyStepsAreThoseOfOneRank) {
  auto run = exact(1, 0);
  run.steps = 50;
  compare(run, "fifty");
}

TEST_P(LayoutExact, InBfloat16WithRecomputation) {
  auto run = exact(1, 0);
  run.engine.compute = DType::bf16;
  run.recompute = Recompute::block;
  compare(run, "bf16");
}

TEST_P(LayoutExact, WhenGradientsTravelInBfloat16) {
  auto run = exact(1, 0);
  run.engine.reduced = DType::bf16;
  compare(run, "travel");
}

// 13 micro-batches: some ranks have one less, and the tree is not complete.
TEST_P(LayoutExact, WhenMicroBatchesDoNotDivide) {
  auto run = exact(1, 0);
  run.engine.micro_batches = 13;
  compare(run, "thirteen");
}

INSTANTIATE_TEST_SUITE_P(Many, LayoutExact,
                         testing::Values(ShardedLayout{1, 1}, ShardedLayout{1, 2}, ShardedLayout{1, 3},
                                         ShardedLayout{2, 0}, ShardedLayout{2, 1}, ShardedLayout{2, 2},
                                         ShardedLayout{2, 3}, ShardedLayout{3, 0}, ShardedLayout{3, 3},
                                         ShardedLayout{4, 0}, ShardedLayout{4, 1}, ShardedLayout{4, 2},
                                         ShardedLayout{4, 3}, ShardedLayout{4, 1, 2}, ShardedLayout{4, 2, 2},
                                         ShardedLayout{4, 3, 2}, ShardedLayout{6, 3, 2},
                                         ShardedLayout{6, 2, 3}, ShardedLayout{8, 0}, ShardedLayout{8, 1},
                                         ShardedLayout{8, 2}, ShardedLayout{8, 3}, ShardedLayout{8, 3, 2},
                                         ShardedLayout{8, 1, 4}),
                         name_of);

TEST(Synchronous, ClippingActs) {
  for (const double norm : train(exact(2, 0)).norms) EXPECT_GT(norm, 0.1);
}

// Also in a step's first pass, after the update has changed all units.
TEST(Synchronous, WeightsComeOneUnitAhead) {
  const GptConfig model{.n_layer = 4, .n_head = 2, .n_embd = 16, .block_size = 8, .vocab_size = 32};
  Recording recording(2, 0);
  Mesh mesh(recording.ranks(), {.data = 2});
  DryBackend backend;
  DataEngine engine(backend, mesh, model, {.zero = 3});
  const auto gathers_at = [&](int unit) {
    recording.clear();
    engine.weights(unit);
    engine.release(unit);
    std::vector<std::string> purposes;
    for (const auto& entry : recording.entries()) purposes.push_back(entry.purpose);
    return purposes;
  };
  engine.initialize(0);
  for (std::int64_t step = 0; step < 2; ++step) {
    SCOPED_TRACE(step);
    engine.begin_step(step);
    const auto parameters = [&](int block) {
      return fmt::format("step {}, parameters of block.{}", step + 1, block);
    };
    EXPECT_THAT(gathers_at(0), testing::ElementsAre(parameters(0)));
    for (int unit = 1; unit < 4; ++unit)
      EXPECT_THAT(gathers_at(unit), testing::ElementsAre(parameters(unit)));
    for (int unit = 5; unit >= 0; --unit) {
      if (unit > 0) engine.weights(unit), engine.release(unit);
      engine.gradients(unit, {});
      engine.gradients_ready(unit);
    }
    engine.measure_gradient();
    engine.update();
  }
}

// A model of one or two blocks, whose units are never gathered twice.
TEST(Synchronous, FewBlocksAreExactToo) {
  for (const int layers : {1, 2}) {
    auto one = exact(1, 0), many = exact(4, 3);
    one.model.n_layer = many.model.n_layer = layers;
    EXPECT_TRUE(train(many).bytes() == train(one).bytes()) << layers << " layers";
  }
}

TEST(Synchronous, StateOnDiskIsExactToo) {
  const auto folder = std::filesystem::path(testing::TempDir()) / fmt::format("offload-{}", ::getpid());
  std::filesystem::create_directory(folder);
  const auto expected = train(exact(1, 0)).bytes();
  for (const int zero : {0, 1, 2, 3}) {
    auto run = exact(2, zero);
    run.engine.offload = folder;
    EXPECT_TRUE(train(run).bytes() == expected) << "ZeRO " << zero;
  }
  EXPECT_TRUE(std::filesystem::remove(folder)) << "it is not empty";
}

class DefaultOrder : public testing::TestWithParam<ShardedLayout> {
 protected:
  RanksRun run_ = [] {
    auto run = exact(GetParam().ranks, GetParam().zero, GetParam().replicate);
    run.engine.layout_exact = false;
    return run;
  }();
};

TEST_P(DefaultOrder, RepeatsItself) { EXPECT_TRUE(train(run_).bytes() == train(run_).bytes()); }

// Before the first update the parameters have the same bits, and so has the loss. The gradient is the same
// sum over M micro-batches in another order. Each element is off by at most (M - 1) roundings of partial
// sums, which are bounded by the sum of the absolute values of the per-micro-batch gradients. So the norm is
// off by at most 2 (M - 1) eps sqrt(M) times the norm of their norms, here bounded by M times the largest.
TEST_P(DefaultOrder, IsThatOfOneRankWithinRounding) {
  run_.steps = 1;
  auto one = run_;
  one.mesh.data = 1;
  one.engine.zero = 0;
  one.engine.replicate = 1;
  const auto many = train(run_), single = train(one);
  EXPECT_EQ(many.losses[0], single.losses[0]);
  const double bound = 2 * 7 * std::numeric_limits<float>::epsilon() * std::sqrt(8.0) * 8;
  EXPECT_NEAR(many.norms[0], single.norms[0], bound * single.norms[0]);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// A first-order bound. In a step, an element of the gradient is a sum of M per-micro-batch gradients
// ("leaves") in another order, so it is off by e_i <= (M - 1) u sum |leaf_i|. AdamW moves a parameter by
// about lr g_i / |g_i|, so the error moves it by at most 2 lr e_i / |g_i|, and the loss by the gradient times
// that: |dL| <= 2 lr (M - 1) u sum_i sum |leaf_i|, which does not depend on the size of the gradient. The sum
// is at most sqrt(P) times the sum of the leaves' norms. Leaves of random data are nearly orthogonal, so that
// is sqrt(M) times the norm of their sum. The errors of steps add up, and the losses themselves are sums of
// float32 terms.
TEST_P(DefaultOrder, TwoHundredStepsStayByThoseOfOneRank) {
  run_.steps = 200;
  run_.batches = 4;
  run_.lr = 1e-3;
  auto one = run_;
  one.mesh.data = 1;
  one.engine.zero = 0;
  one.engine.replicate = 1;
  const auto many = train(run_), single = train(one);
  ASSERT_LT(single.losses.back(), single.losses.front() - 0.4) << "it does not learn";

  const double unit_roundoff = std::numeric_limits<float>::epsilon() / 2, leaves = run_.engine.micro_batches;
  const auto parameters = static_cast<double>(parameter_count(gpt_units(run_.model)));
  const double norm = *std::max_element(single.norms.begin(), single.norms.end());
  const double a_step =
      2 * run_.lr * (leaves - 1) * unit_roundoff * std::sqrt(parameters) * std::sqrt(leaves) * norm;
  const double bound = run_.steps * a_step + 8 * unit_roundoff * single.losses.front();
  EXPECT_LT(bound, 1e-3) << "says nothing";
  EXPECT_LE(largest_difference(many.losses, single.losses), bound);
}

TEST_P(DefaultOrder, GradientsMayTravelInBfloat16) {
  auto run = run_;
  run.steps = 1;
  const auto plain = train(run);
  run.engine.reduced = DType::bf16;
  const auto rounded = train(run);
  EXPECT_EQ(rounded.losses[0], plain.losses[0]);
  // Each of the 8 per-micro-batch gradients is rounded once, by at most 2^-9 of an element.
  EXPECT_NEAR(rounded.norms[0], plain.norms[0], 8 * std::ldexp(1.0, -9) * plain.norms[0]);
  EXPECT_GT(std::abs(rounded.norms[0] - plain.norms[0]), std::ldexp(1.0, -17) * plain.norms[0]);
  EXPECT_TRUE(train(run).bytes() == rounded.bytes());
}

INSTANTIATE_TEST_SUITE_P(Many, DefaultOrder,
                         testing::Values(ShardedLayout{2, 0}, ShardedLayout{2, 1}, ShardedLayout{2, 2},
                                         ShardedLayout{2, 3}, ShardedLayout{3, 1}, ShardedLayout{4, 3},
                                         ShardedLayout{4, 2, 2}, ShardedLayout{4, 1, 2},
                                         ShardedLayout{4, 3, 2}),
                         name_of);

// Units large enough that a team of threads updates them beside the next forward pass.
TEST(Synchronous, UpdatesThatEndLaterChangeNoBit) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    RanksRun run;
    run.model.n_layer = 2;
    run.model.n_embd = 304;
    run.model.bias = false;
    run.engine.compute = compute;
    run.steps = 4;
    run.evaluate_every = 3;
    const auto alone = train(run).bytes();
    run.backend = [](int) { return make_cpu_backend(3); };
    EXPECT_TRUE(train(run).bytes() == alone) << name_of(compute);
  }
}

// The allocated memory of a rank equals the estimate of engine_memory, and falls with the number of ranks.
TEST(Synchronous, ShardsFallWithTheRanks) {
  const RanksRun run;
  const auto of = [&](int zero, int ranks) {
    return engine_memory(run.model, {.zero = zero, .micro_batches = 8}, ranks);
  };
  // Padding to whole blocks of 1024 elements per rank costs this tiny model a little.
  for (const int ranks : {2, 4, 8}) {
    const auto padding = static_cast<std::size_t>(5 * ranks * 1024 * 4);
    EXPECT_LE(of(1, ranks).optimizer, of(0, 1).optimizer / ranks + 2 * padding / ranks);
    EXPECT_EQ(of(0, ranks).gradients, of(1, ranks).gradients);
    EXPECT_LE(of(3, ranks).weights, of(0, 1).weights / ranks + padding / ranks);
  }
}

TEST(Synchronous, ReplicasMustDivideTheRanks) {
  EXPECT_THAT([] { train(exact(4, 1, 3)); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("do not divide the 4 data ranks")));
}

}  // namespace
}  // namespace shoal::test
