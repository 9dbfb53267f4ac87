// The layout does not change the run: runs on threads and under MPI, in every ZeRO stage, end with the same
// bytes as the run on one rank, and so does a run that is resumed in other layouts.
#include <fmt/format.h>

#include <tuple>

#include "cli/tiny_runs.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kExact = {
    "run.deterministic=layout", "train.global_batch=8", "train.micro_batch=1", "train.steps=20",
    "checkpoint.interval=0",    "eval.interval=10",     "train.grad_clip=0.5"};

class Layouts : public TinyRuns {
 protected:
  // Starts a run under mpirun in the folder of the runs.
  void train_under(Mpi mpi, int ranks, const Settings& settings) const {
    auto command = mpirun(mpi, ranks);
    command.insert(command.end(), {"-wdir", folder_.path().string(), SHOAL_BINARY});
    MpiJob job(with(command, train_command(settings)));
    const auto result = job.wait();
    ASSERT_EQ(result.code, 0) << result.err;
  }
};

TEST_F(Layouts, EveryStageOnThreadsEqualsOneRank) {
  train_well(with(kExact, {"run.name=one"}));
  for (const int ranks : {2, 4, 8}) {
    for (const int zero : {0, 1, 2, 3}) {
      const auto name = fmt::format("threads{}zero{}", ranks, zero);
      train_well(with(kExact, {"--ranks", std::to_string(ranks), fmt::format("parallel.zero={}", zero),
                               "run.name=" + name}));
      expect_same(name, "one");
    }
  }
  train_well(with(kExact, {"--ranks", "8", "parallel.zero=3", "parallel.replicate=2", "run.name=groups"}));
  expect_same("groups", "one");
}

TEST_F(Layouts, MpiEqualsThreads) {
  train_well(with(kExact, {"run.name=one"}));
  for (const auto mpi : {Mpi::open_mpi, Mpi::mpich}) {
    if (const auto why = lacks(mpi, fs::path(SHOAL_BINARY).parent_path()); !why.empty()) GTEST_SKIP() << why;
    for (const auto& [ranks, zero, replicate] : {std::tuple(2, 0, 1), {4, 1, 2}, {3, 2, 1}, {4, 3, 1}}) {
      const auto name = fmt::format("{}{}zero{}", mpirun_of(mpi), ranks, zero);
      train_under(mpi, ranks,
                  with(kExact, {fmt::format("parallel.zero={}", zero),
                                fmt::format("parallel.replicate={}", replicate), "run.name=" + name}));
      expect_same(name, "one");
    }
  }
}

// The result of a mesh does not depend on the communicator, even in tensor groups, where ranks add partial
// sums.
TEST_F(Layouts, MeshesUnderMpiEqualThoseOfThreads) {
  const Settings model = {"model.n_layer=4", "model.n_head=4"};
  const Settings meshes[] = {{"parallel.pipeline=2", "parallel.tensor=2"},
                             {"parallel.tensor=4", "parallel.sequence=true"},
                             {"parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true",
                              "parallel.schedule=interleaved", "parallel.chunks=2", "train.dtype=bfloat16"},
                             {"parallel.tensor=2", "parallel.zero=3", "train.recompute=block"}};
  const auto settings = [&](int mesh, const std::string& name) {
    return with(with(kExact, model),
                with(meshes[mesh], {"train.steps=10", "eval.interval=5", "run.name=" + name}));
  };
  for (int mesh = 0; mesh < 4; ++mesh) {
    const auto name = fmt::format("threads{}", mesh);
    train_well(with({"--ranks", "4"}, settings(mesh, name)));
    // Both move the same messages, so each has two meshes: stages, and tensor ranks with sequence
    // parallelism.
    const auto mpi = mesh < 2 ? Mpi::open_mpi : Mpi::mpich;
    if (const auto why = lacks(mpi, fs::path(SHOAL_BINARY).parent_path()); !why.empty()) GTEST_SKIP() << why;
    const auto other = fmt::format("{}{}", mpirun_of(mpi), mesh);
    train_under(mpi, 4, settings(mesh, other));
    expect_same(other, name);
  }
}

TEST_F(Layouts, ARunGoesOnInAnotherLayout) {
  const auto steps = [](int n) { return fmt::format("train.steps={}", n); };
  const auto exact = with(kExact, {"eval.interval=15", "log.interval=5"});
  train_well(with(exact, {steps(60), "run.name=one"}));
  const auto moving = with(exact, {"run.name=moving"});
  train_well(with(moving, {steps(30), "--ranks", "4", "parallel.zero=3"}));
  train_well(with(moving, {steps(45), "--ranks", "2", "parallel.zero=1", "init.from=resume"}));
  train_well(with(moving, {steps(60), "init.from=resume"}));
  expect_same("moving", "one");
}

// The same with bfloat16 products and residual stream, gradients sent in bfloat16, and state on disk.
TEST_F(Layouts, BfloatAndOffloadEqualOneRankToo) {
  const auto bf16 = with(kExact, {"train.dtype=bfloat16", "train.residual_dtype=bfloat16",
                                  "train.gradient_dtype=bfloat16", "parallel.reduce_dtype=bfloat16"});
  train_well(with(bf16, {"run.name=one"}));
  train_well(with(bf16, {"--ranks", "4", "parallel.zero=2", "run.name=four"}));
  expect_same("four", "one");
  train_well(with(bf16, {"--ranks", "2", "parallel.zero=3", "parallel.offload=disk", "run.name=disk"}));
  expect_same("disk", "one");
  // float32 has no use for the narrow stream.
  const auto result = shoal({"eval", "--checkpoint", "runs/one", "train.dtype=float32"});
  EXPECT_EQ(result.code, 0) << result.err;
}

}  // namespace
}  // namespace shoal::test
