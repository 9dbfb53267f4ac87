// Decentralised training as a user starts it: equal runs on threads and under MPI, the end of a run, and its
// estimated memory.
#include <fmt/format.h>

#include "cli/tiny_runs.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Evaluated in the middle of every topology's period.
const std::vector<std::string> kGossip = {
    "parallel.engine=gossip", "train.global_batch=8",  "train.micro_batch=1", "train.steps=10",
    "eval.interval=5",        "checkpoint.interval=5", "log.interval=1"};

class GossipRuns : public TinyRuns {};

class GossipUnderMpi : public GossipRuns, public testing::WithParamInterface<Mpi> {
 protected:
  void SetUp() override {
    if (const auto why = lacks(GetParam(), fs::path(SHOAL_BINARY).parent_path()); !why.empty())
      GTEST_SKIP() << why;
  }
  // Every rank writes its process id.
  std::unique_ptr<MpiJob> start(int ranks, const Settings& settings) const {
    auto command = mpirun(GetParam(), ranks);
    command.insert(command.end(),
                   {"-wdir", folder_.path().string(), "/bin/sh", "-c",
                    "echo $$ >pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec \"$0\" \"$@\"", SHOAL_BINARY});
    return std::make_unique<MpiJob>(with(command, train_command(settings)));
  }
};

TEST_P(GossipUnderMpi, EveryTopologyEqualsThreads) {
  write_file(file("rounds.toml"), "rounds = [[[0, 1, 2], [3]], [[0, 3], [1], [2]], [[0, 1], [2, 3]]]\n");
  const Settings runs[] = {
      {"gossip.topology=complete", "gossip.continue_from_average=true"},
      {"gossip.topology=ring", "gossip.clip=bucket", "gossip.bucket_mib=0.01"},
      {"gossip.topology=exp", "optim.name=accum_adamw", "optim.accum_steps=3", "gossip.bucket_mib=0.01"},
      {"gossip.topology=alternating-exp-ring", "gossip.local_size=2", "train.dtype=bfloat16"},
      {"gossip.topology=file:rounds.toml"},
      {"gossip.topology=complete", "outer.interval=2", "outer.compress=topk:0.05"},
      {"gossip.topology=complete", "outer.interval=2", "outer.compress=int4", "outer.overlap=2"},
      {"gossip.topology=exp", "outer.interval=4", "outer.fragments=2", "outer.overlap=2"},
      {"gossip.worker_size=2", "parallel.zero=3"},
      {"parallel.tensor=2", "parallel.sequence=true"},
      {"parallel.pipeline=2", "run.deterministic=layout"}};
  // Both MPIs move the same messages, so where both are there each has half of the runs.
  const auto other = GetParam() == Mpi::mpich ? Mpi::open_mpi : Mpi::mpich;
  const bool both = lacks(other, fs::path(SHOAL_BINARY).parent_path()).empty();
  for (std::size_t i = 0; i < std::size(runs); ++i) {
    if (both && (i % 2 == 1) != (GetParam() == Mpi::mpich)) continue;
    const auto settings = with(kGossip, runs[i]);
    const auto threads = fmt::format("threads{}", i), processes = fmt::format("mpi{}", i);
    train_well(with(settings, {"--ranks", "4", "run.name=" + threads}));
    const auto result = start(4, with(settings, {"run.name=" + processes}))->wait();
    ASSERT_EQ(result.code, 0) << result.err;
    expect_same(processes, threads);
  }
}

// Only one rank gets the signal; the others learn of it with the losses.
TEST_P(GossipUnderMpi, ASignalToOneWorkerStopsAllAndLosesNothing) {
  const Settings length = {"train.steps=100000", "eval.interval=0", "checkpoint.interval=0"};
  const auto job = start(4, with(kGossip, length));
  ASSERT_TRUE(eventually([&] { return job->err().find("step      7/100000") != std::string::npos; }))
      << job->err();
  ::kill(std::stoi(read_file(file("pid.3"))), SIGTERM);
  const auto result = job->wait();
  EXPECT_EQ(result.code, 0) << result.err;
  const auto at = result.err.find("stopped by SIGTERM after step ");
  ASSERT_NE(at, std::string::npos) << result.err;
  const int step = std::stoi(result.err.substr(at + 30));
  EXPECT_EQ(result.err.find("stopped by", at + 1), std::string::npos);
  EXPECT_THAT(result.err, HasSubstr("go on with init.from=resume"));

  auto rest = with(kGossip, {"eval.interval=0", "checkpoint.interval=0", "--ranks", "4"});
  rest.push_back(fmt::format("train.steps={}", step + 5));
  train_well(with(rest, {"init.from=resume"}));
  train_well(with(rest, {"run.name=undisturbed"}));
  expect_same("tiny", "undisturbed");
}

// The loss of one worker is a spike at a very low threshold; those of the others are not.
TEST_P(GossipUnderMpi, ABadStepOfAWorkerStopsAllSoon) {
  const auto result =
      start(4, with(kGossip, {"train.steps=100000", "train.spike_zscore=1.5", "train.spike_window=8",
                              "checkpoint.interval=1", "eval.interval=0"}))
          ->wait();
  EXPECT_NE(result.code, 0);
  EXPECT_LT(result.seconds, 30);
  EXPECT_THAT(result.err,
              testing::ContainsRegex("shoal: error: rank ([0-3]): step [0-9]+, worker [0-3]: the loss"));
  const auto error = result.err.find("shoal: error: ");
  EXPECT_EQ(result.err[error + 19], result.err[result.err.find("worker ", error) + 7]) << result.err;
  EXPECT_EQ(result.err.find("shoal: error: ", error + 1), std::string::npos) << result.err;
  EXPECT_EQ(shoal({"checkpoint", "verify", "runs/tiny"}).code, 0);
}

INSTANTIATE_TEST_SUITE_P(Both, GossipUnderMpi, testing::Values(Mpi::open_mpi, Mpi::mpich),
                         [](const auto& mpi) { return mpi.param == Mpi::open_mpi ? "OpenMpi" : "Mpich"; });

TEST_F(GossipRuns, ASignalSavesAndTheRunGoesOn) {
  const auto endless =
      with(kGossip, {"train.steps=100000", "--ranks", "4", "eval.interval=0", "checkpoint.interval=0"});
  Process process(train_command(endless), folder_.path());
  ASSERT_TRUE(
      eventually([&] { return process.err_so_far().find("step      5/100000") != std::string::npos; }));
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  const auto at = result.err.find("stopped by SIGINT after step ");
  ASSERT_NE(at, std::string::npos) << result.err;
  const auto steps = fmt::format("train.steps={}", std::stoi(result.err.substr(at + 29)) + 3);
  train_well(with(endless, {steps, "init.from=resume"}));
  train_well(with(endless, {steps, "run.name=undisturbed"}));
  expect_same("tiny", "undisturbed");
}

// The checkpoint's mean is rounded once, the run's in every addition.
TEST_F(GossipRuns, TheirAverageIsWhatIsEvaluated) {
  train_well(with(kGossip, {"--ranks", "4", "eval.batches=0"}));
  const auto log = read_file(file("runs/tiny/train.log"));
  const auto told = std::stod(log.substr(log.find("Val loss: ", log.find("Step 10, ")) + 10));
  const auto eval = shoal({"eval", "--checkpoint", "runs/tiny", "train.threads=1"});
  EXPECT_EQ(eval.code, 0) << eval.err;
  EXPECT_NEAR(std::stod(eval.out.substr(eval.out.find("loss") + 4)), told, 2e-6) << eval.out;
}

TEST_F(GossipRuns, WhatTheyTakeAndSendIsSaid) {
  const auto out_of = [&](const Settings& arguments) {
    const auto result = shoal(with(arguments, with(kGossip, {"train.global_batch=16"})));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const auto dry = out_of({"train", "tiny.toml", "--dry-run", "--ranks", "8", "parallel.tensor=2"});
  EXPECT_THAT(dry, AllOf(HasSubstr("4 workers x 2 tensor ranks"), HasSubstr("the copy that is averaged"),
                         HasSubstr("averaging "), HasSubstr("the mean over 2 rounds of exp"),
                         HasSubstr("rank 0 to 1 "), HasSubstr("worker 0, tensor 1\n"),
                         HasSubstr("to each, worker 1..2, tensor 0\n")));
  const auto outer = out_of({"train", "tiny.toml", "--dry-run", "--ranks", "4", "gossip.topology=complete",
                             "outer.interval=5", "outer.fragments=2", "outer.compress=bfloat16"});
  EXPECT_THAT(outer, AllOf(HasSubstr("movement  "), HasSubstr("the mean over 5 steps")));
  const auto size = out_of({"size", "tiny.toml", "--ranks", "8", "gossip.worker_size=4", "parallel.zero=2"});
  EXPECT_THAT(size,
              AllOf(HasSubstr("2 workers x 4 data ranks"), HasSubstr("sharded over 4 ranks of a worker")));
  const auto table =
      shoal({"size", "--table", "--ranks", "8", "parallel.engine=gossip", "gossip.topology=ring"});
  EXPECT_THAT(table.out, HasSubstr("8 workers")) << table.err;
  const auto schedule =
      out_of({"schedule", "tiny.toml", "parallel.pipeline=2", "parallel.data=4", "gossip.worker_size=2"});
  EXPECT_THAT(schedule, HasSubstr("4 micro-batches (global batch 16 / micro-batch 1 / 2 workers / 2 "
                                  "data-parallel ranks)"));
  EXPECT_THAT(out_of({"schedule", "tiny.toml", "parallel.pipeline=2", "gossip.worker_size=2"}),
              HasSubstr("8 micro-batches (global batch 16 / micro-batch 1 / 2 data-parallel ranks)"));
}

TEST_F(GossipRuns, ThatCannotBeAreRefused) {
  const auto refused = [&](int ranks, const Settings& settings, const auto&... words) {
    expect_user_error(train(with(with(kGossip, {"--ranks", std::to_string(ranks)}), settings)), words...);
  };
  refused(3, {}, "topology exp needs a power of two workers, not 3", "2 or 4 workers would do");
  refused(8, {"train.global_batch=12"}, "cannot be divided evenly among 8 workers", "set it to 8 or 16");
  refused(4, {"parallel.zero=1"}, "parallel.zero = 1", "gossip.worker_size = 1");
  refused(4, {"gossip.worker_size=3"}, "gossip.worker_size = 3", "4 data-parallel ranks");
  refused(4, {"gossip.topology=file:none.toml"}, "cannot read the topology", "none.toml");
  refused(4, {"gossip.clip=bucket", "parallel.tensor=2"}, "does not go with parallel.tensor = 2");
  EXPECT_FALSE(fs::exists(file("runs")));
}

}  // namespace
}  // namespace shoal::test
