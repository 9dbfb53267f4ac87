// The layout does not change the run: meshes of pipeline x data x tensor compared with one rank. Dropout acts
// everywhere, clipping at every step, and every step has several micro-batches. With SHOAL_WHOLE_PARITY set,
// every combination is run, some 2,500 of them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "parallel/ranks_run.h"

namespace shoal::test {
namespace {

constexpr int kMostRanks = 8;

struct Layout {
  MeshShape mesh;
  bool sequence = false;
  int zero = 0, replicate = 1;
  Recompute recompute = Recompute::none;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  DType compute = DType::f32;
};

std::string describe(const Layout& layout) {
  const auto& mesh = layout.mesh;
  return fmt::format("{} x {} x {}{}, ZeRO {}, {} replicas{}, {}, {}", mesh.pipeline, mesh.data, mesh.tensor,
                     layout.sequence ? ", sequence" : "", layout.zero, layout.replicate,
                     layout.recompute == Recompute::block ? ", recompute" : "", name_of(layout.schedule),
                     layout.compute == DType::f32 ? "float32" : "bfloat16");
}

// Every mesh of at most eight ranks.
std::vector<MeshShape> all_meshes() {
  std::vector<MeshShape> meshes;
  for (int tensor = 1; tensor <= kMostRanks; ++tensor) {
    for (int data = 1; data * tensor <= kMostRanks; ++data) {
      for (int pipeline = 1; pipeline * data * tensor <= kMostRanks; ++pipeline)
        meshes.push_back({pipeline, data, tensor});
    }
  }
  return meshes;
}

constexpr ScheduleKind kSchedules[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                       ScheduleKind::interleaved};

// Every mesh, with and without sequence parallelism, in every ZeRO stage. What else a layout has goes round
// as these are counted, so that any two choices meet somewhere (EveryTwoChoicesMeet): a fault takes seldom
// more than two to show.
std::vector<Layout> design() {
  std::vector<Layout> layouts;
  int mesh_number = 0;
  for (const auto& mesh : all_meshes()) {
    for (const bool sequence : {false, true}) {
      if (sequence && mesh.tensor == 1) continue;
      for (int zero = 0; zero < 4; ++zero) {
        const int n = mesh_number + zero;
        layouts.push_back({.mesh = mesh,
                           .sequence = sequence,
                           .zero = zero,
                           .replicate = zero > 0 && mesh.data % 2 == 0 && n % 3 != 0 ? 2 : 1,
                           .recompute = n % 2 ? Recompute::block : Recompute::none,
                           .schedule = kSchedules[n % 3],
                           .compute = (mesh_number + zero / 2) % 2 ? DType::bf16 : DType::f32});
      }
      ++mesh_number;
    }
  }
  return layouts;
}

// Shapes that every size of tensor group finds awkward: heads, channels and classes that do not divide, where
// there are more than one of each; and as small as the meshes with that size allow, since there are many.
RanksRun run_of(const Layout& layout) {
  const int tensor = layout.mesh.tensor;
  constexpr int kHeads[] = {0, 2, 3, 4, 5, 6, 6, 8, 8};
  const int heads = kHeads[tensor], head_size = tensor <= 2 ? 8 : 4;
  const int rows = (8 + tensor - 1) / tensor * tensor;  // which a sequence-parallel group has to divide
  RanksRun run;
  run.mesh = layout.mesh;
  run.sequence = layout.sequence;
  run.schedule = layout.schedule;
  run.model = {.n_layer = tensor == 1   ? 8
                          : tensor <= 4 ? 4
                                        : 2,
               .n_head = heads,
               .n_embd = heads * head_size,
               .block_size = rows,
               .vocab_size = 61,
               .dropout = 0.1,
               .bias = true};
  const bool two_chunks = layout.schedule == ScheduleKind::interleaved && layout.mesh.pipeline > 1 &&
                          2 * layout.mesh.pipeline <= run.model.n_layer;
  run.chunks = two_chunks ? 2 : 1;
  run.engine = {.compute = layout.compute,
                .grad_clip = 0.1,
                .zero = layout.zero,
                .replicate = layout.replicate,
                .layout_exact = true,
                .micro_batches = tensor <= 4 ? 8 : 4};
  run.recompute = layout.recompute;
  run.steps = 50;
  run.batches = 4;
  run.lr = 1e-3;
  run.evaluate_every = 10;
  return run;
}

RanksRun on_one_rank(RanksRun run) {
  run.mesh = {};
  run.sequence = false;
  run.chunks = 1;
  run.engine.zero = 0;
  run.engine.replicate = 1;
  run.recompute = Recompute::none;
  return run;
}

// How far a tensor group's run may be from that of one rank.
//
// The two are roundings of the same exact run. What differs are sums whose terms are grouped otherwise: those
// of row-parallel products, of the statistics of the loss, of norms' gradients over tokens; and since kernels
// choose their order by the shape, those of all products. Roundings have random signs (Higham and Mary 2019),
// and so have the terms: a sum of n of them has, to its own size, an error of u sqrt(n / 2), and two orders
// of it differ by u sqrt(n). What passes through many sums has the root of all their lengths. In a block
// those are C of either norm, C, C, C and 4 C of the products, head size and T of attention, less than 10 C +
// T; through the head 2 C + V; and backward twice that. In bfloat16, sums are float32 but what is kept is
// rounded: ten values of a block one after the other in the forward pass, counting the partial sums that
// ranks exchange, as many backward twice, in both runs.
//
// So a gradient is off by `relative` times its norm G. AdamW moves a parameter by about lr g / |g|, and an
// error e of g moves it by at most 2 lr e / |g|, which changes the loss by 2 lr e; errors of random signs
// change it by 2 lr relative G. Steps add up at worst. This is of first order: it holds while steps are so
// small that a run does not magnify what it is given, as at this rate of learning. (At ten times that, eight
// blocks made of differences of 1e-8 at step 5 some of 1e-4 at step 10.) The losses themselves: a token's is
// off by |p - y| <= sqrt(2) times the error of its logits, rows of the embedding times the error of the final
// norm, whose elements are about 1; tokens are averaged; and a loss is a float32 sum of four terms.
class RoundingBound {
 public:
  RoundingBound(const RanksRun& run, const RunOutcome& one) : run_(run), one_(one) {
    constexpr double kFloat = 0x1p-24, kBfloat = 0x1p-9;
    const double channels = run.model.n_embd, blocks = run.model.n_layer;
    const auto classes = static_cast<double>(run.model.vocab_size);
    const double lengths =
        3 * (blocks * (10 * channels + run.model.block_size) + 2 * channels + classes) + leaves();
    const double kept = run.engine.compute == DType::bf16 ? 2 * 3 * (10 * blocks + 2) : 0;
    relative_ = std::sqrt(kFloat * kFloat * lengths + kBfloat * kBfloat * kept);
    float_ = 4 * kFloat * one.losses.front();
    norm_ = *std::max_element(one.norms.begin(), one.norms.end());
    const auto& wte = one.state.at("transformer.wte.weight");
    for (std::size_t row = 0; row < wte.size(); row += static_cast<std::size_t>(run.model.n_embd)) {
      const auto* first = wte.data() + row;
      const double squares = std::inner_product(first, first + run.model.n_embd, first, 0.0);
      longest_row_ = std::max(longest_row_, std::sqrt(squares));
    }
  }

  double gradient() const { return relative_; }  // to its norm, at the same parameters
  double loss(int step) const { return bound(step, norm_, leaves() * run_.model.block_size); }
  // Of one micro-batch, whose own gradient is longer than the sum of all, which are nearly orthogonal.
  double evaluation(int step) const {
    return bound(step, std::sqrt(leaves()) * norm_, run_.model.block_size);
  }

  void expect_within(const RunOutcome& run) const {
    for (std::size_t i = 0; i < one_.losses.size(); ++i) {
      const int step = static_cast<int>(i);
      EXPECT_NEAR(run.losses.at(i), one_.losses[i], loss(step)) << "step " << step;
    }
    EXPECT_NEAR(run.norms.at(0), one_.norms[0], gradient() * one_.norms[0]);
    for (std::size_t i = 0; i < one_.evaluations.size(); ++i) {
      const int step = static_cast<int>(i + 1) * run_.evaluate_every;
      EXPECT_NEAR(run.evaluations.at(i), one_.evaluations[i], evaluation(step) * run_.model.block_size);
    }
    if (run_.engine.compute == DType::f32) {
      EXPECT_EQ(run.predictions, one_.predictions);
    }
    // What a bound has to be to say anything.
    const double most = run_.engine.compute == DType::f32 ? 1e-6 : 0.0025;
    EXPECT_LT(loss(run_.steps), most * one_.losses.front());
    EXPECT_LT(one_.losses.back(), one_.losses.front() - 0.1) << "it does not learn";
  }

 private:
  double leaves() const { return run_.engine.micro_batches; }
  double bound(int step, double norm, double tokens) const {
    return float_ + relative_ * (longest_row_ * std::sqrt(2 / tokens) + step * 2 * run_.lr * norm);
  }

  RanksRun run_;
  RunOutcome one_;
  double relative_ = 0, float_ = 0, norm_ = 0, longest_row_ = 0;
};

// What can be chosen in a layout, as one text each.
std::vector<std::string> choices(const Layout& layout) {
  const auto& mesh = layout.mesh;
  std::vector<std::string> all = {fmt::format("pipeline {}", mesh.pipeline),
                                  fmt::format("data {}", mesh.data),
                                  fmt::format("tensor {}", mesh.tensor),
                                  fmt::format("ZeRO {}", layout.zero),
                                  layout.recompute == Recompute::block ? "recompute" : "no recompute",
                                  layout.compute == DType::f32 ? "float32" : "bfloat16"};
  if (mesh.tensor > 1) all.emplace_back(layout.sequence ? "sequence" : "no sequence");
  if (mesh.pipeline > 1) all.emplace_back(name_of(layout.schedule));
  return all;
}

std::set<std::pair<std::string, std::string>> pairs(const std::vector<Layout>& layouts) {
  std::set<std::pair<std::string, std::string>> found;
  for (const auto& layout : layouts) {
    const auto all = choices(layout);
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) found.emplace(all[j], all[i]);
    }
  }
  return found;
}

std::vector<Layout> all_layouts() {
  std::vector<Layout> layouts;
  for (const auto& mesh : all_meshes()) {
    for (int n = 0; n < 96; ++n) {
      if (n % 2 && mesh.tensor == 1) continue;
      layouts.push_back({.mesh = mesh,
                         .sequence = n % 2 == 1,
                         .zero = n / 2 % 4,
                         .recompute = n / 8 % 2 ? Recompute::block : Recompute::none,
                         .schedule = kSchedules[n / 16 % 3],
                         .compute = n / 48 ? DType::bf16 : DType::f32});
    }
  }
  return layouts;
}

TEST(MeshDesign, EveryTwoChoicesMeet) {
  EXPECT_EQ(all_meshes().size(), 38);
  const auto met = pairs(design());
  for (const auto& pair : pairs(all_layouts())) {
    EXPECT_TRUE(met.contains(pair)) << pair.first << " and " << pair.second;
  }
}

struct Group {
  int tensor = 1;
  bool sequence = false;
};

class MeshParity : public testing::TestWithParam<Group> {
 protected:
  static RanksRun plain(DType compute) {
    return run_of(
        {.mesh = {.tensor = GetParam().tensor}, .sequence = GetParam().sequence, .compute = compute});
  }
  // Layouts of this group, with one rank of it compared with: those of the design, or every one there is.
  static void expect_same(DType compute, const std::string& expected) {
    const bool whole = std::getenv("SHOAL_WHOLE_PARITY") != nullptr;
    for (const auto& layout : whole ? all_layouts() : design()) {
      if (layout.mesh.tensor != GetParam().tensor || layout.sequence != GetParam().sequence) continue;
      if (layout.compute != compute) continue;
      EXPECT_TRUE(train(run_of(layout)).bytes() == expected)
          << describe(layout) << ": losses, norms, evaluations, parameters or moments differ";
    }
  }
};

// Fifty steps: the same bytes as on one rank; in a tensor group the same as in that group alone, which is
// within rounding of one rank.
TEST_P(MeshParity, OfFloat32) {
  const auto group = train(plain(DType::f32));
  for (const double norm : group.norms)
    EXPECT_GT(norm, plain(DType::f32).engine.grad_clip) << "does not clip";
  if (GetParam().tensor > 1) {
    const auto run = on_one_rank(plain(DType::f32));
    RoundingBound(run, train(run)).expect_within(group);
  }
  expect_same(DType::f32, group.bytes());
}

TEST_P(MeshParity, OfBfloat16) {
  const auto group = train(plain(DType::bf16));
  if (GetParam().tensor > 1) {
    const auto run = on_one_rank(plain(DType::bf16));
    RoundingBound(run, train(run)).expect_within(group);
  }
  expect_same(DType::bf16, group.bytes());
}

INSTANTIATE_TEST_SUITE_P(Every, MeshParity,
                         testing::Values(Group{1}, Group{2}, Group{2, true}, Group{3}, Group{3, true},
                                         Group{4}, Group{4, true}, Group{5}, Group{5, true}, Group{6},
                                         Group{6, true}, Group{7}, Group{7, true}, Group{8}, Group{8, true}),
                         [](const auto& test) {
                           return fmt::format("tensor{}{}", test.param.tensor,
                                              test.param.sequence ? "_sequence" : "");
                         });

// The two ways to share the tokens are roundings of the same run too.
TEST(MeshPairs, SequenceParallelismChangesNoMoreThanRounding) {
  for (const int tensor : {2, 3, 8}) {
    const auto run = run_of({.mesh = {.tensor = tensor}});
    auto sequence = run;
    sequence.sequence = true;
    RoundingBound(run, train(run)).expect_within(train(sequence));
  }
}

// More ranges of units than the meshes above have.
TEST(MeshPairs, ManyChunksEqualOneRank) {
  auto run = run_of({.mesh = {}, .schedule = ScheduleKind::interleaved});
  run.model.n_layer = 16;
  run.steps = 10;
  const auto expected = train(run).bytes();
  for (const auto& [stages, chunks] : {std::pair(2, 8), {3, 3}, {4, 4}, {8, 2}}) {
    run.mesh.pipeline = stages;
    run.chunks = chunks;
    EXPECT_TRUE(train(run).bytes() == expected) << stages << " stages of " << chunks << " chunks";
  }
}

TEST(MeshPairs, InitialParametersAreTheSameBytesInEveryMesh) {
  RanksRun run = run_of({.mesh = {.tensor = 8}});
  run.model.n_layer = 8;
  run.steps = 0;
  const auto expected = train(on_one_rank(run)).bytes();
  int n = 0;
  for (const auto& mesh : all_meshes()) {
    run.mesh = mesh;
    run.engine.zero = n++ % 4;
    EXPECT_TRUE(train(run).bytes() == expected) << describe(Layout{.mesh = mesh, .zero = run.engine.zero});
  }
}

// Without the order of layouts: faster, and repeatable for a layout.
class MeshDefaultOrder : public testing::TestWithParam<Layout> {};

TEST_P(MeshDefaultOrder, RepeatsItselfAndIsThatOfOneRankWithinRounding) {
  auto run = run_of(GetParam());
  run.engine.layout_exact = false;
  const auto mesh = train(run);
  EXPECT_TRUE(train(run).bytes() == mesh.bytes());
  const auto one = on_one_rank(run);
  RoundingBound(one, train(one)).expect_within(mesh);
}

INSTANTIATE_TEST_SUITE_P(
    Some, MeshDefaultOrder,
    testing::Values(Layout{.mesh = {2, 1, 1}, .schedule = ScheduleKind::interleaved},
                    Layout{.mesh = {3, 2, 1}, .zero = 2, .schedule = ScheduleKind::gpipe},
                    Layout{.mesh = {2, 2, 2}, .sequence = true, .zero = 3, .recompute = Recompute::block},
                    Layout{.mesh = {1, 2, 4}, .sequence = true, .zero = 1, .replicate = 2},
                    Layout{.mesh = {2, 1, 3}, .compute = DType::bf16}),
    [](const auto& test) { return fmt::format("layout{}", test.index); });

}  // namespace
}  // namespace shoal::test
