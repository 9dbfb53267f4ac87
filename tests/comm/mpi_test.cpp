// Ranks as processes: the conformance suite under mpirun, and how a job ends when a rank fails.
#include <gmock/gmock.h>
#include <sched.h>

#include <algorithm>

#include "comm/conformance.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

namespace fs = std::filesystem;

const fs::path kProgram = SHOAL_MPI_RANKS;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class MpiRanks : public testing::TestWithParam<Mpi> {
 protected:
  void SetUp() override {
    if (const auto why = lacks(GetParam(), kProgram.parent_path()); !why.empty()) GTEST_SKIP() << why;
  }

  static std::vector<std::string> command(int ranks, const std::vector<std::string>& arguments,
                                          const std::string& program = kProgram) {
    auto command = mpirun(GetParam(), ranks);
    command.push_back(program);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }

  static void expect_failed(const JobResult& result) {
    EXPECT_TRUE(result.code != 0 || forgets_exit_codes(GetParam())) << result.err;
  }

  // The single line that the program itself writes when it fails.
  static std::string message(const JobResult& result) {
    EXPECT_EQ(count(result.err, "shoal: error: "), 1) << result.err;
    const auto begin = result.err.find("shoal: error: ");
    return begin == std::string::npos ? "" : result.err.substr(begin, result.err.find('\n', begin) - begin);
  }
};

INSTANTIATE_TEST_SUITE_P(, MpiRanks, testing::Values(Mpi::open_mpi, Mpi::mpich),
                         [](const auto& test) { return test.param == Mpi::open_mpi ? "OpenMpi" : "Mpich"; });

TEST_P(MpiRanks, Conform) {
  for (const int ranks : {1, 2, 3, 8}) {
    const auto result = MpiJob(command(ranks, {"conform"})).wait(200);
    EXPECT_EQ(result.code, 0) << ranks << " ranks: " << result.err;
    EXPECT_EQ(count(result.out, "conforms"), ranks);
  }
}

TEST_P(MpiRanks, KnowTheirHost) {
  const auto result = MpiJob(command(3, {"where"})).wait();
  EXPECT_EQ(result.code, 0) << result.err;
  for (const auto* line : {"rank 0 local 0 of 3, 1 cores, 3 ranks on 1 host (", "rank 1 local 1 of 3",
                           "rank 2 local 2 of 3", GetParam() == Mpi::open_mpi ? "(Open MPI " : "(MPICH "}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
}

// Within one core, as in a container that has no other, binding to it takes nothing away.
TEST_P(MpiRanks, WarnOfCoresThatOpenMpiTakes) {
  if (GetParam() != Mpi::open_mpi) GTEST_SKIP() << "MPICH binds only on request";
  const auto started = [](const char* binding) {
    std::vector<std::string> command{mpirun_of(Mpi::open_mpi), "-n", "1", "--bind-to", binding};
    if (::geteuid() == 0) command.push_back("--allow-run-as-root");
    command.insert(command.end(), {kProgram.string(), "where"});
    const auto result = MpiJob(command).wait();
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  cpu_set_t all, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const auto within_one = started("core");
  ::sched_setaffinity(0, sizeof all, &all);
  EXPECT_THAT(within_one, Not(HasSubstr("mpirun binds")));
  const int cores = CPU_COUNT(&all);
  if (cores > 1) {
    EXPECT_THAT(started("hwthread"), HasSubstr("mpirun binds each of 1 rank(s) on this host to 1 of its " +
                                               std::to_string(cores) + " cores"));
  }
  EXPECT_THAT(started("none"), Not(HasSubstr("mpirun binds")));
}

TEST_P(MpiRanks, MoveDataWhileTheyCompute) {
  const auto result = MpiJob(command(2, {"progress"})).wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "progress\n");
}

TEST_P(MpiRanks, LeaveTheCoreWhileTheyWait) {
  const auto result = MpiJob(command(3, {"idle"})).wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.out, "idle\n"), 3) << result.out;
}

TEST_P(MpiRanks, OneThatThrowsStopsAll) {
  for (const int ranks : {1, 2, 4}) {
    const auto result = MpiJob(command(ranks, {"fail"})).wait();
    expect_failed(result);
    EXPECT_LT(result.seconds, kSoon);
    const auto who = ranks == 1 ? std::string() : "rank " + std::to_string(ranks - 1) + ": ";
    EXPECT_EQ(message(result), "shoal: error: " + who + "the disk is full");
  }
}

TEST_P(MpiRanks, OneTextFromAllIsSaidOnce) {
  const auto result = MpiJob(command(4, {"fail_alike"})).wait();
  expect_failed(result);
  EXPECT_EQ(message(result), "shoal: error: no such file");
}

TEST_P(MpiRanks, OneThatDoesNotListenIsEnded) {
  const auto result = MpiJob(command(3, {"fail_while_another_computes"})).wait();
  expect_failed(result);
  EXPECT_LT(result.seconds, kSoon);
  EXPECT_THAT(message(result), HasSubstr("gone"));
}

TEST_P(MpiRanks, AnExceptionDoesNotWaitForOthers) {
  const auto result = MpiJob(command(3, {"give_up"})).wait();
  expect_failed(result);
  EXPECT_LT(result.seconds, kSoon);
  EXPECT_EQ(message(result), "shoal: error: rank 0: gone");
}

TEST_P(MpiRanks, ADeadlineNamesWhatAndWho) {
  const auto result = MpiJob(command(3, {"late", "1"})).wait();
  expect_failed(result);
  EXPECT_THAT(message(result),
              HasSubstr("all_reduce (sum) of 100000 float32 [step 12, gradients of block.3] waited 1 "
                        "seconds for rank 2"));
}

std::vector<pid_t> pids(const std::string& out) {
  std::vector<pid_t> found;
  for (auto at = out.find("pid "); at != std::string::npos; at = out.find("pid ", at + 1)) {
    found.push_back(std::atoi(out.c_str() + at + 4));
  }
  return found;
}

// Checks that no process of the job is left, after a moment in which the launcher may reap them.
void expect_gone(const std::vector<pid_t>& processes) {
  for (const auto pid : processes) {
    for (int i = 0; i < 300 && ::kill(pid, 0) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_NE(::kill(pid, 0), 0) << "process " << pid << " is still there";
  }
}

TEST_P(MpiRanks, AKilledOneEndsAll) {
  MpiJob job(command(3, {"go_on"}));
  ASSERT_TRUE(job.await_output("pid ", 3)) << job.err();
  const auto processes = pids(job.out());
  ::kill(processes[1], SIGKILL);
  const double killed = job.seconds();
  const auto result = job.wait();
  expect_failed(result);
  EXPECT_LT(result.seconds - killed, kSoon);
  expect_gone(processes);
}

TEST_P(MpiRanks, AStoppedOneIsNamedAtTheDeadline) {
  MpiJob job(command(3, {"go_on", "1"}));
  ASSERT_TRUE(job.await_output("pid ", 3)) << job.err();
  const auto processes = pids(job.out());
  ::kill(processes[1], SIGSTOP);
  const double stopped = job.seconds();
  const auto result = job.wait();
  expect_failed(result);
  EXPECT_LT(result.seconds - stopped, 1 + 2 * kSoon);
  EXPECT_THAT(message(result), HasSubstr("[going on] waited 1 seconds for rank"));
  EXPECT_THAT(message(result), HasSubstr("did not answer"));
  expect_gone(processes);
}

// A copy of the program without the modules beside it.
TEST_P(MpiRanks, SayHowToInstallMpiWhereItIsMissing) {
  const auto folder = fs::temp_directory_path() / ("shoal-alone-" + std::to_string(::getpid()));
  fs::create_directory(folder);
  fs::copy_file(kProgram, folder / "program", fs::copy_options::overwrite_existing);
  const auto result = MpiJob(command(2, {"where"}, folder / "program")).wait();
  fs::remove_all(folder);
  expect_failed(result);
  EXPECT_THAT(message(result), HasSubstr("was built without it"));
  EXPECT_THAT(message(result), HasSubstr("and build again"));
}

TEST_P(MpiRanks, SayWhatCannotBeLoaded) {
  const auto result = MpiJob(command(2, {"where"}), {"SHOAL_MPI_MODULE=/nowhere/module.so"}).wait();
  expect_failed(result);
  EXPECT_THAT(message(result), HasSubstr("/nowhere/module.so"));
  EXPECT_THAT(message(result), HasSubstr("apt-get install"));
}

}  // namespace
}  // namespace shoal::test
