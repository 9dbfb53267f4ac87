// Training on a GPU as a user runs it: on an emulated GPU where this build has CUDA, and the errors without a
// GPU.
#include <nlohmann/json.hpp>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kNoModule = "SHOAL_CUDA_MODULE=/nowhere/libshoal_cuda.so";

class WithoutCuda : public TinyRuns {};

TEST_F(WithoutCuda, SaysWhyAndWhatElseGoes) {
  const auto result = run(train_command({"train.backend=cuda"}), folder_.path(), {kNoModule});
  expect_user_error_at_the_end(result, "train.backend = \"cuda\" cannot be used", "/nowhere/libshoal_cuda.so",
                               "\"cpu\"");
  EXPECT_FALSE(fs::exists(file("runs"))) << "nothing is begun";
}

TEST_F(WithoutCuda, PlansForAGpuElsewhere) {
  const auto result =
      run({"size", "tiny.toml", "train.backend=cuda", "train.dtype=bfloat16"}, folder_.path(), {kNoModule});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("on the GPU +[0-9.]+ MiB"));
  EXPECT_THAT(result.out, testing::ContainsRegex("on the host +[0-9.]+ MiB +of .* available"));
}

TEST_F(WithoutCuda, WhatGoesWithNothingElseIsRefused) {
  expect_user_error_at_the_end(train({"train.tf32=true"}), "train.tf32 = true", "train.backend = \"cpu\"");
  expect_user_error_at_the_end(train({"parallel.gpu_exchange=nccl"}), "parallel.gpu_exchange = \"nccl\"",
                               "train.backend = \"cpu\"");
}

TEST_F(WithoutCuda, PlansWhatRestsOnTheHost) {
  const auto size = [&](const std::string& offload) {
    return run({"size", "tiny.toml", "train.backend=cuda", "parallel.zero=3", "parallel.offload=" + offload},
               folder_.path(), {kNoModule})
        .out;
  };
  EXPECT_THAT(size("none"), testing::Not(HasSubstr("streaming")));
  EXPECT_THAT(size("host"), testing::ContainsRegex("streaming +[0-9.]+ [KM]iB +float32, on the GPU"));
  EXPECT_THAT(size("host"), testing::ContainsRegex("at rest on the host +[0-9.]+ [KM]iB +pinned: master"));
  EXPECT_THAT(size("disk"),
              testing::ContainsRegex("on disk +[0-9.]+ [KM]iB +beside the total: master weights, "
                                     "moments, sharded gradients, sharded parameters"));
}

#ifdef SHOAL_EMULATED_GPU

class EmulatedGpu : public TinyRuns {
 protected:
  EmulatedGpu() {
    ::setenv("SHOAL_CUDA_MODULE", SHOAL_EMULATED_GPU, 1);
    ::setenv("XDG_CACHE_HOME", file("cache").c_str(), 1);
  }
  ~EmulatedGpu() override {
    ::unsetenv("SHOAL_CUDA_MODULE");
    ::unsetenv("XDG_CACHE_HOME");
  }

  static Settings gpu(const std::string& name, const Settings& more = {}) {
    return with({"train.backend=cuda", "train.steps=6", "eval.interval=3", "checkpoint.interval=3",
                 "run.name=" + name},
                more);
  }
};

TEST_F(EmulatedGpu, GoesOnWhereItStoppedToTheBit) {
  train_well(gpu("whole"));
  train_well(gpu("parts", {"train.steps=3"}));
  train_well(gpu("parts", {"init.from=resume"}));
  EXPECT_EQ(final_state("parts"), final_state("whole"));
}

TEST_F(EmulatedGpu, RanksOfOneGpuAreOneRank) {
  const Settings exact = {"run.deterministic=layout", "train.micro_batch=1"};
  train_well(gpu("one", exact));
  train_well(with(gpu("two", exact), {"--ranks", "2", "parallel.zero=3", "run.verify=2"}));
  train_well(with(gpu("stages", exact), {"--ranks", "4", "parallel.pipeline=2", "parallel.zero=1"}));
  expect_same("two", "one");
  expect_same("stages", "one");
}

TEST_F(EmulatedGpu, IsMeasuredForPlans) {
  const auto run = shoal({"train", "tiny.toml", "train.backend=cuda", "train.steps=2", "parallel.plan=auto"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, testing::AllOf(HasSubstr(", on cuda"), HasSubstr(" ms per step and ")));
  const auto plan = shoal({"plan", "tiny.toml", "train.backend=cuda"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("1 rank on this machine's emulated GPU: "));
  EXPECT_THAT(plan.err, testing::Not(HasSubstr("measuring"))) << "it was measured before the run";
}

// State that rests on the host is measured as well, and chosen where nothing fits otherwise.
TEST_F(EmulatedGpu, IsPlannedWithStateOnTheHost) {
  const auto plan = [&](const Settings& settings) {
    return shoal(with({"plan", "tiny.toml", "train.backend=cuda", "parallel.zero=0", "train.recompute=block",
                       "model.n_layer=6"},
                      settings));
  };
  const auto memory = [&](const std::string& offload) {
    const auto result = plan({"parallel.offload=" + offload, "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out)["plans"][0]["memory_bytes"].get<double>();
  };
  const double resident = memory("none"), rests = memory("host");
  EXPECT_LT(rests, resident);
  const double limit = (rests + resident) / 2 / (1 << 30);
  const auto chosen = plan({fmt::format("plan.memory_gib={:.6f}", limit)});
  ASSERT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_THAT(chosen.out, HasSubstr("parallel.offload=host"));
  EXPECT_THAT(plan({}).out, testing::Not(HasSubstr("parallel.offload")));
  expect_user_error_at_the_end(plan({"parallel.offload=disk"}), "parallel.offload", "no prediction");
}

// A run with two micro-batches, dropout, and a learning rate and optimizer window that change from step to
// step.
TEST_F(EmulatedGpu, ARecordedStepIsTheStep) {
  const Settings busy = {"train.micro_batch=2",          "model.dropout=0.2",
                         "optim.name=accum_adamw",       "optim.accum_steps=3",
                         "lr_schedule.warmup_steps=4",   "train.dtype=bfloat16",
                         "train.gradient_dtype=bfloat16"};
  train_well(gpu("played", busy));
  train_well(gpu("launched", with(busy, {"train.graph=false"})));
  const auto log = [&](const std::string& run) { return read_file(file("runs") / run / "train.log"); };
  EXPECT_THAT(log("played"), HasSubstr("captured as a graph"));
  EXPECT_THAT(log("launched"), testing::Not(HasSubstr("captured as a graph")));
  expect_same("played", "launched");
}

TEST_F(EmulatedGpu, ARecordedStepHasMatricesAndAverages) {
  const Settings settings = {"optim.name=muon", "optim.ema=0.5", "train.dtype=bfloat16"};
  train_well(gpu("played", settings));
  train_well(gpu("launched", with(settings, {"train.graph=false"})));
  EXPECT_EQ(final_state("played"), final_state("launched"));
  EXPECT_THAT(read_file(file("runs/played/train.log")), HasSubstr("captured as a graph"));
}

// The host keeps account of them, also while a graph is replayed.
TEST_F(EmulatedGpu, AStepWithGatheredWeightsIsNotRecorded) {
  const Settings settings = {"parallel.zero=3", "eval.interval=1"};
  train_well(gpu("sharded", settings));
  train_well(gpu("launched", with(settings, {"train.graph=false"})));
  expect_same("sharded", "launched");
  EXPECT_THAT(read_file(file("runs/sharded/train.log")), testing::Not(HasSubstr("captured as a graph")));
}

// Not every step is alike.
TEST_F(EmulatedGpu, AStepWithAnOuterOptimizerIsNotRecorded) {
  train_well(gpu("outer", {"outer.interval=2"}));
  train_well(gpu("launched", {"outer.interval=2", "train.graph=false"}));
  train_well(gpu("without"));
  EXPECT_EQ(final_state("outer"), final_state("launched"));
  EXPECT_NE(final_state("outer"), final_state("without"));
}

TEST_F(EmulatedGpu, ItsCheckpointsAreEveryBackends) {
  train_well(gpu("gpu"));
  train_well({"run.name=cpu", "train.steps=6", "eval.interval=3", "checkpoint.interval=3"});
  const auto on_gpu = shoal({"eval", "--checkpoint", "runs/cpu", "train.backend=cuda"}),
             on_cpu = shoal({"eval", "--checkpoint", "runs/cpu"});
  EXPECT_EQ(on_gpu.code, 0) << on_gpu.err;
  const auto loss = [](const std::string& text) {
    const auto at = text.find("loss");
    return at == std::string::npos ? text : text.substr(at, 12);
  };
  EXPECT_EQ(loss(on_gpu.out), loss(on_cpu.out));
  const auto text = shoal({"sample", "--checkpoint", "runs/gpu", "--backend", "cuda", "--max-tokens", "8"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out,
            shoal({"sample", "--checkpoint", "runs/gpu", "--backend", "cpu", "--max-tokens", "8"}).out);
}

TEST_F(EmulatedGpu, TrainsWhatRestsElsewhereToTheBit) {
  const Settings full = {"parallel.zero=3", "train.dtype=bfloat16", "train.residual_dtype=bfloat16",
                         "train.gradient_dtype=bfloat16"};
  train_well(with(gpu("none"), full));
  for (const std::string offload : {"host", "disk"}) {
    const auto settings = with(full, {"parallel.offload=" + offload});
    const auto result = train(with(gpu(offload), settings));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("parallel.offload = \"" + offload + "\""));
    EXPECT_EQ(final_state(offload), final_state("none")) << offload;
    train_well(with(gpu("parts-" + offload, {"train.steps=3"}), settings));
    train_well(with(gpu("parts-" + offload, {"init.from=resume"}), settings));
    EXPECT_EQ(final_state("parts-" + offload), final_state("none")) << offload << ", in two parts";
  }
  // Another layout can resume, too, and no other files are left beside the checkpoints.
  train_well(with(gpu("parts-host", {"train.steps=7", "init.from=resume", "parallel.offload=none"}), {}));
  for (const auto& entry : fs::directory_iterator(file("runs/disk"))) {
    EXPECT_THAT(entry.path().filename().string(), testing::Not(testing::StartsWith("shoal-state")));
  }
}

TEST_F(EmulatedGpu, RanksThatOffloadAreOneRank) {
  const Settings exact = {"run.deterministic=layout", "train.micro_batch=1"};
  train_well(gpu("one", exact));
  for (const std::string offload : {"host", "disk"}) {
    train_well(with(gpu(offload, exact), {"--ranks", "2", "parallel.zero=2", "parallel.offload=" + offload}));
    expect_same(offload, "one");
  }
}

TEST_F(EmulatedGpu, SaysWhatCannotBePinned) {
  const auto result = run(train_command(gpu("pinned", {"parallel.offload=host"})), folder_.path(),
                          {"SHOAL_TEST_PINNED_PIECES=1"});
  expect_user_error_at_the_end(result, "of the host's memory cannot be pinned",
                               "parallel.offload = \"disk\"");
}

// Two algorithms with different results, which take turns in being measured as the faster one.
class ChosenProducts : public EmulatedGpu {
 protected:
  static constexpr const char *kFirst = "SHOAL_FAKE_ALGORITHMS=1 2", *kSecond = "SHOAL_FAKE_ALGORITHMS=2 1";

  static Settings short_run(const std::string& name, const Settings& more = {}) {
    return train_command(gpu(name, with({"train.steps=2", "train.dtype=bfloat16"}, more)));
  }
  // The final state of a run.
  std::string state(const std::string& name, const char* faster, const Settings& more = {}) const {
    const auto result = run(short_run(name, more), folder_.path(), {faster});
    EXPECT_EQ(result.code, 0) << result.err;
    return final_state(name);
  }
  fs::path choices() const {
    const fs::path only = *fs::directory_iterator(file("cache/shoal"));
    EXPECT_THAT(only.filename(), testing::Eq("products-2-cublaslt-130000-emulated-GPU.txt"));
    return only;
  }
};

TEST_F(ChosenProducts, AreTheSameInTheNextRun) {
  const auto first = state("first", kFirst);
  EXPECT_EQ(state("again", kSecond), first);
  fs::remove(choices());
  const auto second = state("second", kSecond);
  EXPECT_NE(second, first);
  EXPECT_EQ(state("second_again", kFirst), second);

  const auto text = read_file(choices());
  write_file(choices(), "no such file\n" + text.substr(text.size() - text.size() / 3));
  state("damaged", kSecond);
  EXPECT_EQ(final_state("damaged"), second);
  EXPECT_EQ(state("mended", kFirst), second);
}

// The choice between a fused product with GELU and two kernels is also kept.
TEST_F(ChosenProducts, WithGeluOrWithout) {
  constexpr const char *kTogether = "SHOAL_FAKE_FUSED=0.5", *kApart = "SHOAL_FAKE_FUSED=2";
  const auto together = state("together", kTogether);
  EXPECT_EQ(state("together_again", kApart), together);
  fs::remove(choices());
  EXPECT_NE(state("apart", kApart), together);
}

TEST_F(ChosenProducts, AreTheSameInProcessesAtOnce) {
  Process one(short_run("one"), folder_.path(), {kFirst}), two(short_run("two"), folder_.path(), {kSecond});
  EXPECT_EQ(one.wait().code, 0);
  EXPECT_EQ(two.wait().code, 0);
  EXPECT_EQ(final_state("one"), final_state("two"));
}

TEST_F(ChosenProducts, HoldForTheProcessWhereNothingCanBeWritten) {
  write_file(file("cache"), "a file, no folder");
  const auto result = run(short_run("run"), folder_.path(), {kFirst});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("cache/shoal cannot be written"));
}

TEST_F(ChosenProducts, AreNotTimedWhereLayoutsAgree) {
  const Settings exact = {"run.deterministic=layout"};
  EXPECT_EQ(state("first", kFirst, exact), state("second", kSecond, exact));
  EXPECT_FALSE(fs::exists(file("cache")));
}

TEST_F(EmulatedGpu, IsInTheDoctorsList) { EXPECT_THAT(shoal({"doctor"}).out, HasSubstr("emulated GPU")); }

#ifdef SHOAL_EMULATED_NCCL

// Each rank has a GPU of its own.
class EmulatedGpus : public EmulatedGpu {
 protected:
  EmulatedGpus() {
    ::setenv("SHOAL_EMULATED_GPUS", "4", 1);
    ::setenv("SHOAL_NCCL_MODULE", SHOAL_EMULATED_NCCL, 1);
  }
  ~EmulatedGpus() override {
    ::unsetenv("SHOAL_EMULATED_GPUS");
    ::unsetenv("SHOAL_NCCL_MODULE");
  }
  std::string log_of(const std::string& name) const { return read_file(file("runs") / name / "train.log"); }
};

TEST_F(EmulatedGpus, AreOneRankOverNccl) {
  const Settings exact = {"run.deterministic=layout", "train.micro_batch=1"};
  train_well(gpu("one", exact));
  EXPECT_THAT(log_of("one"), Not(HasSubstr("between GPUs")));
  train_well(with(gpu("two", exact), {"--ranks", "2", "parallel.zero=3"}));
  train_well(with(gpu("stages", exact), {"--ranks", "4", "parallel.pipeline=2", "parallel.zero=1"}));
  for (const auto* name : {"two", "stages"}) {
    expect_same(name, "one");
    EXPECT_THAT(log_of(name), HasSubstr("between GPUs: NCCL 2."));
  }
}

TEST_F(EmulatedGpus, WithoutNcclGoThroughTheHost) {
  const auto two = with(gpu("host"), {"--ranks", "2"});
  train_well(with(two, {"parallel.gpu_exchange=host"}));
  EXPECT_THAT(log_of("host"), HasSubstr("between GPUs: through the host's memory, as the config says"));
  const auto result = run(train_command(with(two, {"run.name=none", "parallel.gpu_exchange=nccl"})),
                          folder_.path(), {"SHOAL_NCCL_MODULE=/nowhere/libshoal_nccl.so"});
  expect_user_error_at_the_end(result, "parallel.gpu_exchange = \"nccl\" cannot be used",
                               "/nowhere/libshoal_nccl.so");
}

TEST_F(EmulatedGpus, RanksThatShareOneGoThroughTheHost) {
  train_well(with(gpu("shared"), {"--ranks", "5", "train.global_batch=5", "train.micro_batch=1"}));
  EXPECT_THAT(log_of("shared"),
              HasSubstr("between GPUs: through the host's memory, since ranks 0 and 4 have the same GPU"));
}

TEST_F(EmulatedGpus, AllEndWithTheirFailure) {
  const auto result =
      train(with(gpu("bad"), {"--ranks", "2", "optim.lr=1e30", "train.grad_clip=0", "train.steps=50"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("is not finite"));
}

#endif

#endif

}  // namespace
}  // namespace shoal::test
