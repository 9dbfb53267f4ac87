// shoal launch when gossip workers die: the ranks that continue, their start, and the messages.
#include <fmt/format.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/tiny_runs.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class GossipLaunch : public TinyRuns {
 protected:
  void make_mpirun(const std::string& script) const {
    write_file(file("mpirun"), "#!/bin/bash\n" + script);
    ::chmod(file("mpirun").c_str(), 0755);
  }
  // A fake mpirun that starts no ranks and, the first `times` times, reports that rank 1 on host x was
  // killed.
  void make_deadly_mpirun(int times = 1) const {
    make_mpirun(
        fmt::format("[ \"$1\" = --version ] && {{ echo 'mpirun (Open MPI) 4.1.4'; exit; }}\n"
                    "echo \"$*\" >>calls\n[ $(wc -l <calls) -le {} ] || exit 0\n"
                    "D=$(printf -- '-%.0s' {{1..74}}); printf -- \"$D\\nPrimary job  terminated normally, "
                    "but\\nmpirun noticed that process rank 1 with PID 7 on node x exited on signal 9 "
                    "(Killed).\\n$D\\n\" >&2; exit 137\n",
                    times));
  }
  static Settings launch_command(const Settings& options, const Settings& settings) {
    Settings arguments = {"launch", "--mpirun", "./mpirun"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"--", "train", "tiny.toml", "parallel.engine=gossip"});
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    return arguments;
  }
  // Launches with an mpirun whose first `times` calls fail.
  Result launch_to_die(const Settings& options, const Settings& settings, int times = 1) const {
    make_deadly_mpirun(times);
    fs::remove(file("calls"));
    return shoal(launch_command(options, settings));
  }
  Settings calls() const {
    std::istringstream lines(read_file(file("calls")));
    Settings result;
    for (std::string line; std::getline(lines, line);) result.push_back(line);
    return result;
  }
};

TEST_F(GossipLaunch, TheOthersGoOnWhereTheyMayBeFewer) {
  const auto four =
      launch_to_die({"-n", "4", "--min-ranks", "1", "--max-restarts", "1"},
                    {"gossip.topology=complete", "train.global_batch=12", "train.micro_batch=1"});
  EXPECT_EQ(four.code, 0) << four.err;
  EXPECT_THAT(four.err, HasSubstr("without worker 1 there is room for 3 ranks\n"));
  EXPECT_THAT(four.err, HasSubstr("rank 1 was ended by SIGKILL; restart 1 of 1, on 3 ranks, from the "));
  EXPECT_THAT(calls().back(), HasSubstr("-n 3 "));

  // All workers restart, each with its own state, when fewer ranks are not allowed.
  const auto all =
      launch_to_die({"-n", "4", "--min-ranks", "4", "--max-restarts", "1"}, {"train.micro_batch=1"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.err, HasSubstr("restart 1 of 1, on 4 ranks"));
  EXPECT_THAT(all.err, Not(HasSubstr("without")));
}

TEST_F(GossipLaunch, AsManyAsTopologyAndBatchTake) {
  const Settings fewer = {"--min-ranks", "1", "--max-restarts", "1"};
  const auto on = [&](int ranks, const Settings& settings) {
    auto options = fewer;
    options.insert(options.begin(), {"-n", std::to_string(ranks)});
    const auto result = launch_to_die(options, settings);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  const Settings batch = {"train.global_batch=24", "train.micro_batch=1"};
  const auto with = [&](Settings more) {
    more.insert(more.end(), batch.begin(), batch.end());
    return more;
  };
  EXPECT_THAT(on(4, with({"gossip.topology=exp"})),
              HasSubstr("without worker 1 there is room for 3 ranks, but topology exp needs a power of two "
                        "workers, not 3; 2 or 4 workers would do: 2 continue\n"));
  EXPECT_THAT(on(6, with({"gossip.topology=ring"})), HasSubstr("ring needs an even number"));
  EXPECT_THAT(calls().back(), HasSubstr("-n 4 "));
  EXPECT_THAT(on(6, with({"gossip.topology=complete"})),
              HasSubstr("train.global_batch = 24 cannot be divided evenly among 5 workers"));
  EXPECT_THAT(calls().back(), HasSubstr("-n 4 "));
  EXPECT_THAT(on(8, with({"gossip.topology=alternating-exp-ring", "gossip.local_size=2"})),
              HasSubstr("not 7 workers with 2 on a node; 4 or 8 workers would do: 4 continue"));
  // Workers of two ranks, with a given number of data ranks.
  EXPECT_THAT(on(8, with({"parallel.tensor=2", "parallel.data=4"})),
              HasSubstr("without worker 0 there is room for 6 ranks, but topology exp needs"));
  EXPECT_THAT(calls().back(), testing::AllOf(HasSubstr("-n 4 "), HasSubstr("parallel.data=0")));
  EXPECT_THAT(on(8, with({"gossip.worker_size=2", "parallel.zero=1"})), HasSubstr("6 ranks, but topology"));
  // A single worker cannot be left out.
  EXPECT_THAT(on(2, with({"gossip.worker_size=2"})), HasSubstr("restart 1 of 1, on 2 ranks"));
}

TEST_F(GossipLaunch, EveryDeathTakesAWorker) {
  const auto result =
      launch_to_die({"-n", "4", "--min-ranks", "1", "--max-restarts", "3"}, {"train.micro_batch=1"}, 3);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 3, on 2 ranks"));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 3, on 2 ranks"));  // the other two, and the idle one
  EXPECT_THAT(result.err, HasSubstr("restart 3 of 3, on 1 rank"));
}

TEST_F(GossipLaunch, AHostKeepsThePlacesOfItsOtherWorkers) {
  write_file(file("shell"), "#!/bin/sh\n");
  ::chmod(file("shell").c_str(), 0755);
  const auto result = launch_to_die(
      {"--remote-shell", "./shell", "--hosts", "y:1,x:3", "--min-ranks", "1", "--max-restarts", "1"},
      {"gossip.topology=complete", "train.global_batch=12", "train.micro_batch=1"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(calls().back(), HasSubstr("--host y:1,x:2 "));
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 1, on 3 ranks"));
}

TEST_F(GossipLaunch, WhatCannotShrinkEndsAndSaysSo) {
  write_file(file("rounds.toml"), "rounds = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]\n");
  const auto own = launch_to_die({"-n", "4", "--max-restarts", "1"},
                                 {"gossip.topology=file:rounds.toml", "train.micro_batch=1"});
  EXPECT_EQ(own.code, 1);
  EXPECT_THAT(own.err, HasSubstr("shoal: error: rank 1 was ended by SIGKILL, and without worker 1 there is "
                                 "room for 3 ranks, but "));
  EXPECT_THAT(own.err, HasSubstr("rounds.toml is a topology of 4 workers, not of 3"));
  EXPECT_THAT(own.err, HasSubstr("with --min-ranks 4 all start again"));
  EXPECT_EQ(calls().size(), 1u);

  const auto most =
      launch_to_die({"-n", "4", "--min-ranks", "3", "--max-restarts", "1"}, {"train.micro_batch=1"});
  EXPECT_EQ(most.code, 1);
  EXPECT_THAT(most.err, HasSubstr("exp needs a power of two workers, not 3"));
  EXPECT_THAT(most.err, HasSubstr("nor would any other number down to --min-ranks 3"));
}

// A worker that reports its error is not left out: the same error would occur on any other.
TEST_F(GossipLaunch, AFailureThatIsExplainedTakesNobodyAway) {
  // MPICH's mpirun kills the others and reports one of these.
  make_mpirun(
      "[ \"$1\" = --version ] && { echo 'HYDRA build details:'; exit; }\necho \"$*\" >>calls\n[ $(wc -l "
      "<calls) -le 1 ] || exit 0\necho 'shoal: error: rank 3: step 7, worker 3: the loss is not finite' "
      ">&2\nE=$(printf -- '=%.0s' {1..83}); printf \"$E\\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION "
      "PROCESSES\\n=   PID 7 RUNNING AT x\\n=   EXIT CODE: 9\\n$E\\n\"; exit 9\n");
  const auto result =
      shoal(launch_command({"-n", "4", "--min-ranks", "1", "--max-restarts", "1"}, {"train.micro_batch=1"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(calls().back(), HasSubstr("-n 4 "));
  EXPECT_THAT(result.err, HasSubstr("a rank failed; restart 1 of 1, on 4 ranks"));
}

class KilledWorker : public GossipLaunch, public testing::WithParamInterface<Mpi> {
 protected:
  void SetUp() override {
    if (const auto why = lacks(GetParam(), fs::path(SHOAL_BINARY).parent_path()); !why.empty())
      GTEST_SKIP() << why;
    // The real mpirun; every rank writes its process id.
    const std::string mpirun = mpirun_of(GetParam());
    make_mpirun(
        "options=(); while [ $# -gt 0 ] && [ \"${1:0:1}\" != / ]; do options+=(\"$1\"); shift; done\n"
        "[ $# -gt 0 ] || exec " +
        mpirun + " \"${options[@]}\"\nexec " + mpirun +
        " \"${options[@]}\" /bin/sh -c 'echo $$ >pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec \"$0\" "
        "\"$@\"' \"$@\"\n");
  }
  // Rank 2 of 4 is killed in the middle of an exchange. It is suspended first: a round later no rank can
  // continue, since all have started exchanges that wait for it.
  Result launch_and_kill(const Settings& options) const {
    auto all = Settings{"-n", "4", "--max-restarts", "1"};
    all.insert(all.end(), options.begin(), options.end());
    Process process(launch_command(all, kSettings), folder_.path());
    const auto log = [&] { return read_file(file("runs/tiny/train.log")); };
    EXPECT_TRUE(eventually([&] { return log().find("step  12/300") != std::string::npos; }))
        << process.err_so_far();
    const pid_t worker = std::stoi(read_file(file("pid.2")));
    ::kill(worker, SIGSTOP);
    std::string before;
    EXPECT_TRUE(eventually([&] {
      const bool still = before == log();
      before = log();
      if (!still) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return still;
    }));
    EXPECT_THAT(before, Not(HasSubstr("done:")));
    ::kill(worker, SIGKILL);
    return process.wait();
  }
  // Each step once, in order.
  void expect_whole_metrics() const {
    std::istringstream lines(read_file(file("runs/tiny/metrics.jsonl")));
    int step = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("lr")) {
        EXPECT_EQ(record["step"], ++step);
      }
    }
    EXPECT_EQ(step, 300);
  }
  const Settings kSettings = {"train.micro_batch=1", "train.steps=300", "log.interval=1", "eval.interval=5",
                              "checkpoint.interval=5"};
};

TEST_P(KilledWorker, LeavesTheOthersToGoOnFromTheAverage) {
  const auto result = launch_and_kill({});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("there is room for 3 ranks, but topology exp needs a power of two "));
  EXPECT_THAT(result.err, HasSubstr("was ended by SIGKILL; restart 1 of 1, on 2 ranks, from step "));
  EXPECT_THAT(result.err,
              HasSubstr("the checkpoint is of 4 workers and this run of 2 workers: the start is the mean "));
  EXPECT_THAT(result.err, HasSubstr("done: 300 steps"));
  expect_whole_metrics();
  const auto manifest = read_file(file("runs/tiny/checkpoints/latest/manifest.json"));
  EXPECT_THAT(manifest, HasSubstr("worker.1."));
  EXPECT_THAT(manifest, Not(HasSubstr("worker.2.")));
}

TEST_P(KilledWorker, StartsAgainWithItsOwnModel) {
  const auto result = launch_and_kill({"--min-ranks", "4"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("was ended by SIGKILL; restart 1 of 1, on 4 ranks, from step "));
  expect_whole_metrics();
  auto undisturbed = kSettings;
  undisturbed.insert(undisturbed.end(), {"--ranks", "4", "parallel.engine=gossip", "run.name=undisturbed",
                                         "checkpoint.interval=0"});
  train_well(undisturbed);
  EXPECT_EQ(shoal({"checkpoint", "compare", "runs/tiny", "runs/undisturbed"}).code, 0);
  EXPECT_EQ(reproducible_metrics("tiny"), reproducible_metrics("undisturbed"));
}

INSTANTIATE_TEST_SUITE_P(Both, KilledWorker, testing::Values(Mpi::open_mpi, Mpi::mpich),
                         [](const auto& mpi) { return mpi.param == Mpi::open_mpi ? "OpenMpi" : "Mpich"; });

}  // namespace
}  // namespace shoal::test
