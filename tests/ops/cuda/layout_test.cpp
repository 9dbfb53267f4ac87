// The layout does not change a run on GPUs: compares several ranks, on one or more GPUs, with one rank and
// with the CPU.
#include <fmt/format.h>

#include <map>
#include <string>
#include <tuple>

#include "ops/cuda/cuda.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/gossip_run.h"

namespace shoal::test {
namespace {

RanksRun on_gpus(RanksRun run) {
  run.backend = [](int rank) { return make_cuda_backend({.device = rank}); };
  return run;
}

// The type of products, and that of the residual stream and of gradients.
struct RunTypes {
  DType compute = DType::f32, others = DType::f32;
};

RanksRun small_run(const MeshShape& mesh, int zero, const RunTypes& types) {
  RanksRun run;
  run.mesh = mesh;
  run.sequence = mesh.tensor > 1;
  run.model.n_embd = 16;
  run.engine = {.compute = types.compute,
                .grad_clip = 0.1,
                .zero = zero,
                .layout_exact = true,
                .micro_batches = 4,
                .gradients = types.others};
  run.stream = types.others;
  run.steps = 2;
  run.evaluate_every = 1;
  return run;
}

struct Layout {
  MeshShape mesh;
  int zero = 0;
};

class CudaLayout : public testing::TestWithParam<std::tuple<Layout, RunTypes>> {};

// The run of one rank, or of one tensor group, since tensor ranks add in another order. It is made once.
const std::string& bytes_of_one(int tensor, const RunTypes& types) {
  static std::map<std::tuple<int, DType, DType>, std::string> runs;
  const auto [place, is_new] = runs.try_emplace({tensor, types.compute, types.others});
  if (is_new) place->second = train(on_gpus(small_run({.tensor = tensor}, 0, types))).bytes();
  return place->second;
}

TEST_P(CudaLayout, IsTheRunOfOneRank) {
  const auto& [layout, types] = GetParam();
  const auto run = train(on_gpus(small_run(layout.mesh, layout.zero, types)));
  EXPECT_TRUE(run.bytes() == bytes_of_one(layout.mesh.tensor, types));
}

constexpr RunTypes kBfloat16{DType::bf16, DType::f32}, kNarrow{DType::bf16, DType::bf16};
constexpr Layout kZero3{{1, 4, 1}, 3}, kPipelineAndTensor{{2, 1, 2}, 0}, kAll{{2, 2, 2}, 3};
const std::tuple<Layout, RunTypes> kLayouts[] = {{Layout{{1, 2, 1}, 0}, {}},
                                                 {Layout{{1, 2, 1}, 1}, {}},
                                                 {Layout{{1, 2, 1}, 2}, {}},
                                                 {kZero3, {}},
                                                 {Layout{{2, 1, 1}, 0}, {}},
                                                 {kPipelineAndTensor, {}},
                                                 {kAll, {}},
                                                 {kAll, kBfloat16},
                                                 {kZero3, kNarrow},
                                                 {kPipelineAndTensor, kNarrow},
                                                 {kAll, kNarrow}};
INSTANTIATE_TEST_SUITE_P(, CudaLayout, testing::ValuesIn(kLayouts), [](const auto& test) {
  const auto& layout = std::get<0>(test.param);
  const auto& types = std::get<1>(test.param);
  return fmt::format("{}x{}x{}Zero{}{}", layout.mesh.pipeline, layout.mesh.data, layout.mesh.tensor,
                     layout.zero,
                     types.others == DType::bf16    ? "Narrow"
                     : types.compute == DType::bf16 ? "Bfloat16"
                                                    : "Float32");
});

// Steps are small, so that rounding errors do not grow from step to step.
TEST(CudaRuns, FollowTheCpu) {
  const auto run = small_run({1, 2, 1}, 1, {});
  const auto gpu = train(on_gpus(run)), cpu = train(run);
  constexpr double kRounding = 1e-4;
  for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
    EXPECT_NEAR(gpu.losses[step], cpu.losses[step], kRounding * cpu.losses[step]) << "step " << step;
  }
}

TEST(CudaRuns, WorkersAverage) {
  auto run = gossip_run(make_topology("exp", 4, 1));
  run.model.n_embd = 16;
  run.steps = 2;  // the period of the topology
  const auto gpu = train_workers(on_gpus(run)), cpu = train_workers(run);
  EXPECT_TRUE(bytes_of(train_workers(on_gpus(run))) == bytes_of(gpu));
  for (std::size_t worker = 0; worker < cpu.size(); ++worker) {
    EXPECT_NEAR(gpu[worker].losses.back(), cpu[worker].losses.back(), 1e-3);
  }
}

}  // namespace
}  // namespace shoal::test
