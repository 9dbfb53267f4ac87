// Checkpoints in memory as a user has them: processes are killed with SIGKILL, hosts are lost. Hosts are
// ranks of one machine with host names of their own, which needs root; tests/deploy/hosts_test.sh has hosts
// on a network.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/tiny_runs.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Whether a shell command succeeds here.
bool works(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

class MemoryCheckpoints : public TinyRuns {
 protected:
  MemoryCheckpoints() { fs::create_directory(file("memory")); }

  static Settings in_memory(const Settings& more = {}) {
    return with({"run.deterministic=layout", "train.micro_batch=1", "train.steps=300", "log.interval=1",
                 "eval.interval=150", "checkpoint.interval=50", "checkpoint.memory=true",
                 "checkpoint.memory_dir=memory"},
                more);
  }
  void train_undisturbed() const {
    train_well(with(in_memory(), {"checkpoint.memory=false", "run.name=undisturbed"}));
  }
  // The number behind the last occurrence of `words`; -1 where there is none.
  static std::int64_t number_after(const std::string& text, const std::string& words) {
    const auto at = text.rfind(words);
    return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + words.size());
  }
  std::int64_t last_step(const std::string& name) const {
    return number_after(read_file(file("runs") / name / "metrics.jsonl"), "{\"step\":");
  }
  std::vector<fs::path> shards() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(file("memory"))) {
      if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
    }
    std::ranges::sort(found);
    return found;
  }

  // The processes of MPI ranks that train in this test's folder.
  std::vector<pid_t> ranks_here() const {
    std::vector<pid_t> found;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const auto pid = std::atoi(entry.path().filename().c_str());
      if (pid <= 0 || fs::read_symlink(entry.path() / "cwd", gone) != fs::canonical(folder_.path())) continue;
      const auto words = read_file(entry.path() / "cmdline");
      if (words.find(std::string("shoal\0train", 11)) != std::string::npos &&
          !read_file(entry.path() / "environ").empty() &&
          read_file(entry.path() / "environ").find("OMPI_COMM_WORLD_RANK=") != std::string::npos) {
        found.push_back(pid);
      }
    }
    return found;
  }
  static int rank_of(pid_t pid) {
    return static_cast<int>(
        number_after(read_file(fmt::format("/proc/{}/environ", pid)), "OMPI_COMM_WORLD_RANK="));
  }

  // Every rank on a host of its own: fake0, fake1, ...
  MpiJob start_on_hosts(int ranks, const Settings& settings) const {
    write_file(file("host.sh"),
               "exec unshare --uts sh -c 'hostname fake$OMPI_COMM_WORLD_RANK && exec \"$0\" \"$@\"' \"$@\"");
    auto command = mpirun(Mpi::open_mpi, ranks);
    const std::string folder = folder_.path();
    command.insert(command.end(), {"-wdir", folder, "sh", "host.sh", SHOAL_BINARY});
    const auto words = train_command(settings);
    command.insert(command.end(), words.begin(), words.end());
    return MpiJob(command);
  }
};

// One process has all ranks; the next one has another number of them.
TEST_F(MemoryCheckpoints, AKilledProcessLosesAtMostOneStep) {
  train_undisturbed();
  {
    Process process(train_command(in_memory({"--ranks", "2"})), folder_.path());
    ASSERT_TRUE(eventually([&] { return last_step("tiny") >= 20; }));
    process.signal(SIGKILL);
    process.wait();
  }
  const auto last = last_step("tiny");
  ASSERT_LT(last, 300) << "the run ended too soon";
  const auto result = train(in_memory({"--ranks", "4", "init.from=auto", "parallel.zero=2"}));
  EXPECT_EQ(result.code, 0) << result.err;
  const auto from = number_after(result.err, "the state after step ");
  EXPECT_GE(from, last - 1) << result.err;
  EXPECT_LE(from, last + 1);  // whose record was not written yet
  expect_same("tiny", "undisturbed");
  EXPECT_TRUE(fs::is_empty(file("memory")));
}

TEST_F(MemoryCheckpoints, AKilledRankIsReplacedByTheLauncher) {
  if (const auto why = lacks(Mpi::open_mpi, fs::path(SHOAL_BINARY).parent_path()); !why.empty())
    GTEST_SKIP() << why;
  train_undisturbed();
  auto command =
      Settings{"launch", "-n", "2", "--mpirun", mpirun_of(Mpi::open_mpi), "--max-restarts", "1", "--"};
  // No checkpoint on the disk before the last step.
  const auto words = train_command(in_memory({"checkpoint.interval=0", "checkpoint.best=false"}));
  command.insert(command.end(), words.begin(), words.end());
  Process process(command, folder_.path());
  ASSERT_TRUE(eventually([&] { return last_step("tiny") >= 20; })) << process.err_so_far();
  for (const auto pid : ranks_here()) {
    if (rank_of(pid) == 1) ::kill(pid, SIGKILL);
  }
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  const auto died = result.err.find("rank 1 was ended by SIGKILL; restart 1 of 1");
  ASSERT_NE(died, std::string::npos) << result.err;
  EXPECT_THAT(result.err, HasSubstr("from the beginning, or a newer state in memory"));
  const auto last = number_after(result.err.substr(0, died), "step ");  // the last line before
  EXPECT_GE(number_after(result.err, "the state after step "), last - 1) << result.err;
  EXPECT_EQ(shoal({"checkpoint", "compare", "runs/tiny", "runs/undisturbed"}).code, 0);
  EXPECT_EQ(reproducible_metrics("tiny"), reproducible_metrics("undisturbed"));
  EXPECT_TRUE(fs::is_empty(file("memory")));
}

TEST_F(MemoryCheckpoints, ALostHostsStateIsOnAnother) {
  if (const auto why = lacks(Mpi::open_mpi, fs::path(SHOAL_BINARY).parent_path()); !why.empty())
    GTEST_SKIP() << why;
  if (!works("unshare --uts true")) GTEST_SKIP() << "only root can give processes a host name of their own";
  train_undisturbed();
  std::string log;
  {
    auto job = start_on_hosts(3, in_memory({"parallel.zero=1"}));
    ASSERT_TRUE(eventually([&] { return last_step("tiny") >= 20; })) << job.err();
    for (const auto pid : ranks_here()) {
      if (rank_of(pid) == 1) ::kill(pid, SIGKILL);
    }
    EXPECT_NE(job.wait().code, 0);
    log = job.err();
  }
  EXPECT_THAT(log, HasSubstr("with copies on another host"));
  const auto last = last_step("tiny");
  ASSERT_LT(last, 300) << "the run ended too soon";
  EXPECT_EQ(shards().size(), 12u);  // three hosts with two states of two ranks each
  fs::path lost;
  for (const auto& shard : shards()) {
    if (shard.string().find("/fake1/") != std::string::npos)
      lost = shard.parent_path().parent_path().parent_path();
  }
  ASSERT_EQ(lost.filename(), "fake1");
  fs::remove_all(lost);

  // The two other hosts go on.
  auto job = start_on_hosts(2, in_memory({"init.from=resume", "parallel.zero=2"}));
  const auto result = job.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_GE(number_after(result.err, "the state after step "), last - 1) << result.err;
  expect_same("tiny", "undisturbed");
  for (const auto& left : shards())
    EXPECT_THAT(left.string(), HasSubstr("/fake2/"));  // which did not come back
}

TEST_F(MemoryCheckpoints, ADamagedShardIsReplacedByItsCopy) {
  if (const auto why = lacks(Mpi::open_mpi, fs::path(SHOAL_BINARY).parent_path()); !why.empty())
    GTEST_SKIP() << why;
  if (!works("unshare --uts true")) GTEST_SKIP() << "only root can give processes a host name of their own";
  {
    auto job = start_on_hosts(2, in_memory({"checkpoint.interval=0", "checkpoint.best=false"}));
    ASSERT_TRUE(eventually([&] { return last_step("tiny") >= 20; })) << job.err();
    for (const auto pid : ranks_here()) ::kill(pid, SIGKILL);
    job.wait();
  }
  const auto last = last_step("tiny");
  for (const auto& shard : shards()) {  // both states of rank 0 on its own host
    if (shard.string().find("/fake0/") == std::string::npos ||
        shard.filename().string().find("shard-00000") != 0)
      continue;
    auto bytes = read_file(shard);
    bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 1);
    write_file(shard, bytes);
  }
  auto job = start_on_hosts(2, in_memory({"init.from=auto"}));
  const auto result = job.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("a shard in memory is damaged and is not used"));
  EXPECT_GE(number_after(result.err, "the state after step "), last - 1) << result.err;
  EXPECT_TRUE(fs::is_empty(file("memory")));
}

TEST_F(MemoryCheckpoints, TooLittleMemoryIsRefusedBeforeTheFirstStep) {
  const std::string in_namespace = "unshare --mount sh -c 'mount -t tmpfs -o size=64k tmpfs memory && ";
  if (!works("cd " + folder_.path().string() + " && " + in_namespace + "true'"))
    GTEST_SKIP() << "only root can mount a small file system";
  const auto command = fmt::format("cd {} && {} exec {} {}' 2>err; echo $? >code", folder_.path().string(),
                                   in_namespace, SHOAL_BINARY, fmt::join(train_command(in_memory()), " "));
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(read_file(file("code")), "2\n");
  const auto err = read_file(file("err"));
  EXPECT_THAT(err, HasSubstr("shoal: error: checkpoint.memory needs "));
  EXPECT_THAT(err, HasSubstr("64.0 KiB are free"));
  EXPECT_THAT(err, HasSubstr("mount -o remount,size="));
  EXPECT_THAT(err, Not(HasSubstr("step 1/")));
  EXPECT_EQ(last_step("tiny"), -1);
}

TEST_F(MemoryCheckpoints, AStopAndAnEndLeaveNothing) {
  Process process(train_command(in_memory({"--ranks", "2"})), folder_.path());
  ASSERT_TRUE(eventually([&] { return last_step("tiny") >= 5; }));
  EXPECT_FALSE(shards().empty());
  process.signal(SIGINT);
  EXPECT_EQ(process.wait().code, 0);
  EXPECT_TRUE(fs::is_empty(file("memory")));
}

TEST_F(MemoryCheckpoints, SizeKnowsThem) {
  const auto plain = shoal({"size", "tiny.toml"}),
             with_them = shoal({"size", "tiny.toml", "checkpoint.memory=true"});
  EXPECT_THAT(plain.out, Not(HasSubstr("checkpoints in memory")));
  EXPECT_THAT(with_them.out, HasSubstr("checkpoints in memory"));
  expect_user_error(train({"checkpoint.memory=true", "parallel.offload=disk", "train.backend=cuda"}),
                    "checkpoint.memory = true", "parallel.offload");
}

}  // namespace
}  // namespace shoal::test
