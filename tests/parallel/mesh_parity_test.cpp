// The layout does not change the run: meshes of pipeline x data x tensor ranks compared with one rank.
// Dropout is on, clipping acts at every step, and every step has several micro-batches. With
// SHOAL_WHOLE_PARITY set, all combinations are run, about 5,000, and for more steps.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "parallel/rounding_bound.h"

namespace shoal::test {
namespace {

constexpr int kMostRanks = 8;

bool whole_parity() { return std::getenv("SHOAL_WHOLE_PARITY") != nullptr; }

struct MeshLayout {
  MeshShape mesh;
  bool sequence = false;
  int zero = 0, replicate = 1;
  Recompute recompute = Recompute::none;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  DType compute = DType::f32;
};

constexpr Recompute kRecomputes[] = {Recompute::none, Recompute::gelu, Recompute::light, Recompute::block};
std::string recompute_text(const MeshLayout& layout) {
  constexpr const char* kNames[] = {"none", "gelu", "light", "block"};
  return fmt::format("recompute {}", kNames[static_cast<int>(layout.recompute)]);
}

std::string description(const MeshLayout& layout) {
  const auto& mesh = layout.mesh;
  return fmt::format("{} x {} x {}{}, ZeRO {}, {} replicas, {}, {}, {}", mesh.pipeline, mesh.data,
                     mesh.tensor, layout.sequence ? ", sequence" : "", layout.zero, layout.replicate,
                     recompute_text(layout), name_of(layout.schedule),
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

int schedule_count() { return static_cast<int>(schedule_schemes().size()); }
ScheduleKind schedule_of(int n) {
  return schedule_schemes()[static_cast<std::size_t>(n % schedule_count())].kind;
}

// Every mesh, with and without sequence parallelism, in every ZeRO stage. All other choices of a layout
// rotate with the index, so that any two choices occur together somewhere (EveryTwoChoicesMeet): a fault
// rarely needs more than two.
std::vector<MeshLayout> design() {
  std::vector<MeshLayout> layouts;
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
                           .recompute = kRecomputes[n % 4],
                           .schedule = schedule_of(n + mesh_number / 4),
                           .compute = (mesh_number + zero / 2) % 2 ? DType::bf16 : DType::f32});
      }
      ++mesh_number;
    }
  }
  return layouts;
}

// Model shapes that are difficult for a tensor size: heads, channels and classes are not divisible by it. As
// small as the meshes of that size allow, since there are many.
RanksRun parity_run(const MeshLayout& layout) {
  const int tensor = layout.mesh.tensor;
  constexpr int kHeads[] = {0, 2, 3, 4, 5, 6, 6, 8, 8};
  const int heads = kHeads[tensor], head_size = tensor <= 2 ? 8 : 4;
  const int rows = (8 + tensor - 1) / tensor * tensor;  // divisible by a sequence-parallel group
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
  const bool two_chunks = scheme_of(layout.schedule).takes_chunks && layout.mesh.pipeline > 1 &&
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

// The choices of a layout, as texts.
std::vector<std::string> choices(const MeshLayout& layout) {
  const auto& mesh = layout.mesh;
  std::vector<std::string> all = {fmt::format("pipeline {}", mesh.pipeline),
                                  fmt::format("data {}", mesh.data),
                                  fmt::format("tensor {}", mesh.tensor),
                                  fmt::format("ZeRO {}", layout.zero),
                                  recompute_text(layout),
                                  layout.compute == DType::f32 ? "float32" : "bfloat16"};
  if (mesh.tensor > 1) all.emplace_back(layout.sequence ? "sequence" : "no sequence");
  if (mesh.pipeline > 1) all.emplace_back(name_of(layout.schedule));
  return all;
}

std::set<std::pair<std::string, std::string>> pairs(const std::vector<MeshLayout>& layouts) {
  std::set<std::pair<std::string, std::string>> found;
  for (const auto& layout : layouts) {
    const auto all = choices(layout);
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) found.emplace(all[j], all[i]);
    }
  }
  return found;
}

std::vector<MeshLayout> all_layouts() {
  std::vector<MeshLayout> layouts;
  for (const auto& mesh : all_meshes()) {
    for (int n = 0; n < 64 * schedule_count(); ++n) {
      if (n % 2 && mesh.tensor == 1) continue;
      layouts.push_back({.mesh = mesh,
                         .sequence = n % 2 == 1,
                         .zero = n / 2 % 4,
                         .recompute = kRecomputes[n / 8 % 4],
                         .schedule = schedule_of(n / 32),
                         .compute = n / 32 / schedule_count() ? DType::bf16 : DType::f32});
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
    return parity_run(
        {.mesh = {.tensor = GetParam().tensor}, .sequence = GetParam().sequence, .compute = compute});
  }
  // A sum in another order has other bits in the first steps, and moments and weights keep them. Three
  // evaluations.
  static std::string bytes_of_run(RanksRun run) {
    if (!whole_parity()) run.steps = 12, run.evaluate_every = 4;
    return train(run).bytes();
  }
  // The layouts to compare with the group alone: those of the design, or all.
  static void expect_same(DType compute) {
    const auto expected = bytes_of_run(plain(compute));
    for (const auto& layout : whole_parity() ? all_layouts() : design()) {
      if (layout.mesh.tensor != GetParam().tensor || layout.sequence != GetParam().sequence) continue;
      if (layout.compute != compute) continue;
      EXPECT_TRUE(bytes_of_run(parity_run(layout)) == expected)
          << description(layout) << ": losses, norms, evaluations, parameters or moments differ";
    }
  }
};

// Steps give the same bytes as on one rank. With tensor parallelism they are the same as in the tensor group
// alone, fifty of which are within rounding of one rank.
TEST_P(MeshParity, OfFloat32) {
  const auto group = train(plain(DType::f32));
  for (const double norm : group.norms)
    EXPECT_GT(norm, plain(DType::f32).engine.grad_clip) << "does not clip";
  if (GetParam().tensor > 1) {
    const auto run = on_one_rank(plain(DType::f32));
    RoundingBound(run, train(run)).expect_within(group);
  }
  expect_same(DType::f32);
}

TEST_P(MeshParity, OfBfloat16) {
  if (GetParam().tensor > 1) {
    const auto run = on_one_rank(plain(DType::bf16));
    RoundingBound(run, train(run)).expect_within(train(plain(DType::bf16)));
  }
  expect_same(DType::bf16);
}

INSTANTIATE_TEST_SUITE_P(Every, MeshParity,
                         testing::Values(Group{1}, Group{2}, Group{2, true}, Group{3}, Group{3, true},
                                         Group{4}, Group{4, true}, Group{5}, Group{5, true}, Group{6},
                                         Group{6, true}, Group{7}, Group{7, true}, Group{8}, Group{8, true}),
                         [](const auto& test) {
                           return fmt::format("tensor{}{}", test.param.tensor,
                                              test.param.sequence ? "_sequence" : "");
                         });

// Runs with and without sequence parallelism differ by rounding only.
TEST(MeshPairs, SequenceParallelismChangesNoMoreThanRounding) {
  for (const int tensor : {2, 3, 8}) {
    const auto run = parity_run({.mesh = {.tensor = tensor}});
    auto sequence = run;
    sequence.sequence = true;
    RoundingBound(run, train(run)).expect_within(train(sequence));
  }
}

// More ranges of units than the meshes above have.
TEST(MeshPairs, ManyChunksEqualOneRank) {
  auto run = parity_run({.mesh = {}, .schedule = ScheduleKind::interleaved});
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
  RanksRun run = parity_run({.mesh = {.tensor = 8}});
  run.model.n_layer = 8;
  run.steps = 0;
  const auto expected = train(on_one_rank(run)).bytes();
  int n = 0;
  for (const auto& mesh : all_meshes()) {
    run.mesh = mesh;
    run.engine.zero = n++ % 4;
    EXPECT_TRUE(train(run).bytes() == expected)
        << description(MeshLayout{.mesh = mesh, .zero = run.engine.zero});
  }
}

// Without layout determinism: faster, and repeatable for a layout.
class MeshDefaultOrder : public testing::TestWithParam<MeshLayout> {};

TEST_P(MeshDefaultOrder, RepeatsItselfAndIsThatOfOneRankWithinRounding) {
  auto run = parity_run(GetParam());
  run.engine.layout_exact = false;
  const auto mesh = train(run);
  EXPECT_TRUE(train(run).bytes() == mesh.bytes());
  const auto one = on_one_rank(run);
  RoundingBound(one, train(one)).expect_within(mesh);
}

INSTANTIATE_TEST_SUITE_P(
    Some, MeshDefaultOrder,
    testing::Values(MeshLayout{.mesh = {2, 1, 1}, .schedule = ScheduleKind::interleaved},
                    MeshLayout{.mesh = {3, 2, 1}, .zero = 2, .schedule = ScheduleKind::gpipe},
                    MeshLayout{.mesh = {2, 2, 2}, .sequence = true, .zero = 3, .recompute = Recompute::block},
                    MeshLayout{.mesh = {1, 2, 4}, .sequence = true, .zero = 1, .replicate = 2},
                    MeshLayout{.mesh = {2, 1, 3}, .compute = DType::bf16}),
    [](const auto& test) { return fmt::format("layout{}", test.index); });

}  // namespace
}  // namespace shoal::test
