// Several ranks as a user starts them: results, messages, and failures, which lose no data. layout_test.cpp
// tests that the layout does not change a run.
#include <fmt/format.h>

#include "cli/tiny_runs.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Ranks : public TinyRuns {
 protected:
  std::string out_of(const Settings& arguments) const {
    const auto result = shoal(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
};

TEST_F(Ranks, TheConfigMayAskForThem) {
  train_well({"--ranks", "2", "run.name=option"});
  train_well({"parallel.data=2", "run.name=config"});
  for (const std::string name : {"option", "config"}) {
    EXPECT_THAT(read_file(file("runs") / name / "train.log"), HasSubstr("ranks: 2 threads of this process"));
    EXPECT_TRUE(fs::exists(file("runs") / name / "checkpoints/latest/shard-00001-of-00002.safetensors"));
  }
  EXPECT_EQ(reproducible_metrics("option"), reproducible_metrics("config"));
}

TEST_F(Ranks, EvaluationAndSamplesAreTheSameOnAnyNumber) {
  train_well();
  const Settings eval = {"eval", "--checkpoint", "runs/tiny", "train.threads=1"};
  const Settings sample = {"sample",       "--checkpoint", "runs/tiny", "--samples", "5",
                           "--max-tokens", "40",           "--stop",    "ab",        "train.threads=1"};
  const auto evaluation = out_of(eval), text = out_of(sample);
  EXPECT_EQ(count(text, "---------------\n"), 4);
  for (const std::string ranks : {"2", "3", "8"}) {
    EXPECT_EQ(out_of(with(eval, {"--ranks", ranks})), evaluation);
    EXPECT_EQ(out_of(with(eval, {"--ranks", ranks, "parallel.zero=3"})), evaluation);
    EXPECT_EQ(out_of(with(sample, {"--ranks", ranks})), text);
  }
  const auto batches = out_of(with(eval, {"--batches", "7"}));
  EXPECT_EQ(out_of(with(eval, {"--batches", "7", "--ranks", "3"})), batches);
}

// Only ranks would have to find each other.
TEST_F(Ranks, TasksOfSrunWithoutAnMpiAreProgramsOfTheirOwn) {
  const auto as_task = [&](const std::string& task, const Settings& arguments) {
    return run(arguments, folder_.path(),
               {"SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=" + task});
  };
  for (const std::string task : {"0", "1"}) {
    EXPECT_THAT(as_task(task, {"--version"}).out, testing::StartsWith("shoal "));
    EXPECT_THAT(as_task(task, train_command({"--dry-run"})).out, HasSubstr(" parameters\n"));
    const auto threads = as_task(task, train_command({"--ranks", "2", "run.name=task-" + task}));
    EXPECT_EQ(threads.code, 0) << threads.err;
  }
  expect_user_error(as_task("0", train_command({})), "srun started 4 tasks that cannot find each other",
                    "srun --mpi=pmix");
  const auto other = as_task("1", train_command({}));
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.out + other.err, "");
}

TEST_F(Ranks, ASignalSavesAndAnyNumberGoesOn) {
  const Settings length = {"train.steps=1500", "log.interval=5", "eval.interval=500", "checkpoint.interval=0",
                           "run.deterministic=layout"};
  Process process(train_command(with(length, {"--ranks", "2"})), folder_.path());
  ASSERT_TRUE(eventually([&] { return process.err_so_far().find("step    5/1500") != std::string::npos; }));
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.err, "stopped by SIGINT after step "), 1);
  train_well(with(length, {"init.from=resume"}));
  train_well(with(length, {"run.name=undisturbed"}));
  EXPECT_EQ(shoal({"checkpoint", "compare", "runs/tiny", "runs/undisturbed"}).code, 0);
  EXPECT_EQ(reproducible_metrics("tiny"), reproducible_metrics("undisturbed"));
}

TEST_F(Ranks, ThatCannotBeAreRefused) {
  expect_user_error(train({"--ranks", "5"}), "5 ranks cannot share the 4 sequences", "at most 4");
  expect_user_error(train({"--ranks", "3", "train.micro_batch=2"}),
                    "3 ranks cannot share the 2 micro-batches", "set train.micro_batch=1");
  expect_user_error(train({"--ranks", "0"}), "--ranks");
  expect_user_error(train({"--ranks", "100000"}), "100000 ranks", "too many");
  expect_user_error(train({"--ranks", "2", "parallel.data=4"}), "parallel.data = 4",
                    "--ranks started 2 ranks");
  expect_user_error(train({"--ranks", "2", "parallel.zero=1", "parallel.replicate=3"}),
                    "parallel.replicate = 3", "2 data-parallel ranks");
  expect_user_error(train({"--ranks", "2", "parallel.replicate=2"}), "parallel.zero");
  EXPECT_FALSE(fs::exists(file("runs")));
}

// An error on all ranks is reported once, without a rank.
TEST_F(Ranks, AMistakeOfAllIsSaidOnce) {
  expect_user_error(train({"--ranks", "4", "train.micro_batch=1", "data.dir=nowhere"}),
                    "shoal: error: nowhere: no such data folder");
  expect_user_error(train({"--ranks", "2", "init.from=resume"}), "shoal: error: init.from=resume");
  train_well({"--ranks", "2"});
  expect_user_error(train({"--ranks", "2"}), "shoal: error: runs/tiny already holds a run");
  expect_user_error(shoal({"eval", "--checkpoint", "runs/tiny", "--split", "test", "--ranks", "2"}),
                    "shoal: error: data: has no test.bin");
  expect_user_error(shoal({"sample", "--checkpoint", "runs/none", "--ranks", "2"}), "runs/none");
}

TEST_F(Ranks, AFullDiskKeepsWhatWasSaved) {
  const Settings length = {"--ranks", "2", "run.deterministic=layout"};
  train_well(with(length, {"run.name=undisturbed"}));
  train_well(with(length, {"train.steps=10"}));
  // Files are limited to 60 blocks of 512 bytes, which stops only the writing of both shards.
  std::string line = fmt::format("cd '{}' && trap '' XFSZ && ulimit -f 60 && exec '{}' train tiny.toml",
                                 folder_.path().string(), SHOAL_BINARY);
  for (const auto& setting : with(length, {"init.from=resume", "checkpoint.interval=5"}))
    line += " " + setting;
  const int status = std::system(
      fmt::format("/bin/sh -c \"{}\" >'{}' 2>'{}'", line, file("out").string(), file("err").string())
          .c_str());
  const Result result{WEXITSTATUS(status), read_file(file("out")), read_file(file("err"))};
  expect_user_error_at_the_end(result, "the state after step 20 could not be saved",
                               "rank 0 could not save its shard", "File too large",
                               "The last one, step-00000010, is untouched");
  EXPECT_EQ(count(result.err, "could not be saved: the checkpoint of step 15"), 1);
  EXPECT_EQ(count(result.err, "shoal: error"), 1);
  EXPECT_THAT(result.err, HasSubstr("step 20/20"));
  train_well(with(length, {"init.from=resume"}));
  EXPECT_EQ(shoal({"checkpoint", "compare", "runs/tiny", "runs/undisturbed"}).code, 0);
}

// These tests work with any MPI.
class RanksUnderMpi : public Ranks {
 protected:
  static constexpr Mpi kMpi = Mpi::open_mpi;
  void SetUp() override {
    if (const auto why = lacks(kMpi, fs::path(SHOAL_BINARY).parent_path()); !why.empty()) GTEST_SKIP() << why;
  }
  // The command of one rank, in a folder of its own, after the shell commands `before`.
  struct Part {
    Settings arguments;
    fs::path folder;
    std::string before = ":";
  };
  // A shell selects the command of a rank: mpirun of Open MPI 5.0.7 crashes when it starts several programs
  // (github.com/open-mpi/ompi/issues/13303).
  JobResult job(const std::vector<Part>& ranks) const {
    std::string script = "case $OMPI_COMM_WORLD_RANK in";
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      script += fmt::format(" {}) cd '{}' && {} && exec '{}' '{}' ;;", i, ranks[i].folder.string(),
                            ranks[i].before, SHOAL_BINARY, fmt::join(ranks[i].arguments, "' '"));
    }
    auto command = mpirun(kMpi, static_cast<int>(ranks.size()));
    command.insert(command.end(), {"/bin/sh", "-c", script + " esac"});
    return MpiJob(command).wait();
  }
  JobResult alike(int ranks, const Settings& arguments) const {
    return job(std::vector<Part>(static_cast<std::size_t>(ranks), {arguments, folder_.path()}));
  }
  // All ranks end soon, and the error is reported once.
  template <typename... Words>
  static void expect_error(const JobResult& result, const Words&... words) {
    EXPECT_NE(result.code, 0);
    EXPECT_EQ(count(result.err, "shoal: error: "), 1) << result.err;
    for (const std::string& word : {std::string(words)...}) EXPECT_THAT(result.err, HasSubstr(word));
  }
};

TEST_F(RanksUnderMpi, EvaluationAndSamplesAreThoseOfOneRank) {
  train_well();
  const Settings eval = {"eval", "--checkpoint", "runs/tiny", "train.threads=1"};
  const Settings sample = {"sample", "--checkpoint", "runs/tiny", "--samples",
                           "4",      "--max-tokens", "40",        "train.threads=1"};
  const auto result = alike(3, eval);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, out_of(eval));
  EXPECT_EQ(alike(3, sample).out, out_of(sample));
}

TEST_F(RanksUnderMpi, OtherConfigsAndDataAreRefused) {
  const auto command = train_command({});
  expect_error(job({{command, folder_.path()}, {train_command({"optim.lr=0.5"}), folder_.path()}}),
               "rank 1: ", "optim.lr: 0.5 (rank 0 has 0.01)");
  EXPECT_FALSE(fs::exists(file("runs")));

  // Other files, like on another host.
  const TempDir other;
  fs::copy(file("data"), other / "data");
  fs::copy(file("tiny.toml"), other / "tiny.toml");
  auto bytes = read_file(other / "data/train.bin");
  bytes[0] = bytes[2], bytes[1] = bytes[3];
  write_file(other / "data/train.bin", bytes);
  expect_error(job({{command, folder_.path()}, {command, other.path()}}),
               "rank 1: ", "data/train.bin: ", "(rank 0 has ");
  fs::remove(other / "data/val.bin");
  expect_error(job({{command, folder_.path()}, {command, other.path()}}), "rank 1: data/val.bin");
  EXPECT_FALSE(fs::exists(file("runs")));
  EXPECT_FALSE(fs::exists(other / "runs"));
}

TEST_F(RanksUnderMpi, AnotherNumberThanWasAskedForIsRefused) {
  expect_error(alike(2, train_command({"--ranks", "3"})), "--ranks 3 was given, but mpi", "started 2 ranks");
  expect_error(alike(2, train_command({"parallel.data=3"})), "parallel.data = 3 asks for 3 ranks");
  expect_error(alike(2, train_command({"data.dir=nowhere"})), "nowhere: no such data folder");
}

// Bits depend on the instructions, so ranks agree on them.
TEST_F(RanksUnderMpi, ProcessorsThatDifferTakeTheLowerLevel) {
#ifndef __x86_64__
  GTEST_SKIP() << "one level";
#endif
  const std::string low = "export SHOAL_ISA=x86-64-v2";
  const auto both = [&](const std::string& name) { return train_command({"run.name=" + name}); };
  ASSERT_EQ(job({{both("low"), folder_.path(), low}, {both("low"), folder_.path(), low}}).code, 0);
  const auto mixed = job({{both("mixed"), folder_.path()}, {both("mixed"), folder_.path(), low}});
  ASSERT_EQ(mixed.code, 0) << mixed.err;
  expect_same("low", "mixed");
  EXPECT_EQ(count(mixed.err, "all compute with the instructions of x86-64-v2"), 1) << mixed.err;
}

TEST_F(RanksUnderMpi, WithoutMpiThreadsAreNamed) {
  const std::string nowhere = "export SHOAL_MPI_MODULE=/nowhere/module.so";
  const Part part{train_command({}), folder_.path(), nowhere};
  expect_error(job({part, part}), "/nowhere/module.so", "Or start `--ranks 2` without mpirun");
}

// Only the disk of rank 1 is full.
TEST_F(RanksUnderMpi, AFullDiskOfOneRankIsNamed) {
  const Settings length = {"run.deterministic=layout", "checkpoint.interval=5"};
  train_well(with(length, {"run.name=undisturbed"}));
  ASSERT_EQ(alike(2, train_command(with(length, {"train.steps=10"}))).code, 0);
  const auto resume = train_command(with(length, {"init.from=resume"}));
  // Open MPI's shared memory files exceed the limit, so it uses sockets.
  const std::string sockets = "export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo";
  const auto result = job({{resume, folder_.path(), sockets},
                           {resume, folder_.path(), sockets + " && trap '' XFSZ && ulimit -f 30"}});
  expect_error(result, "the state after step 20 could not be saved", "rank 1 could not save its shard",
               "File too large", "The last one, step-00000010, is untouched");
  EXPECT_EQ(count(result.err, "could not be saved: the checkpoint of step 15"), 1);
  EXPECT_THAT(result.err, HasSubstr("step 20/20"));
  EXPECT_EQ(alike(3, with(resume, {"train.micro_batch=1"})).code, 0);
  EXPECT_TRUE(fs::exists(file("runs/tiny/checkpoints/step-00000020")));
}

TEST_F(RanksUnderMpi, AFolderThatTheyDoNotShareIsRefused) {
  const TempDir other;
  fs::copy(file("data"), other / "data");
  fs::copy(file("tiny.toml"), other / "tiny.toml");
  expect_error(job({{train_command({}), folder_.path()}, {train_command({}), other.path()}}),
               "rank 1: it does not see the run's folder runs/tiny");
}

}  // namespace
}  // namespace shoal::test
