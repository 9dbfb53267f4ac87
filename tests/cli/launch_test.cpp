// shoal launch: ranks that end, fail, die and restart. Tests on several hosts are in tests/deploy.
#include <sys/stat.h>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Launch : public TinyRuns {
 protected:
  // A fake mpirun that runs a script, in which `$@` is the program with its arguments.
  void make_mpirun(const std::string& script, const std::string& version = "mpirun (Open MPI) 4.1.4") const {
    write_file(file("mpirun"), "#!/bin/bash\n[ \"$1\" = --version ] && { echo '" + version +
                                   "'; exit; }\n"
                                   "echo \"$*\" >>calls\nwhile [ \"${1:0:1}\" != / ]; do shift; done\n" +
                                   script);
    ::chmod(file("mpirun").c_str(), 0755);
  }
  Settings launch_command(const Settings& options, const Settings& settings) const {
    Settings arguments = {"launch", "--mpirun", "./mpirun"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"--", "train", "tiny.toml"});
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    return arguments;
  }
  Result launch(const Settings& options, const Settings& settings = {}) const {
    return shoal(launch_command(options, settings));
  }
  // A remote shell of hosts that answer while this command succeeds; `$1` is the host.
  void make_shell(const std::string& condition) const {
    write_file(file("shell"), "#!/bin/sh\n" + condition + "\n");
    ::chmod(file("shell").c_str(), 0755);
  }
};

// The message of Open MPI's mpirun when a rank is killed.
constexpr const char* kKilledBanner =
    "D=$(printf -- '-%.0s' {1..74}); printf -- \"$D\\nPrimary job  terminated normally, but 1 process "
    "returned\\na non-zero exit code. Per user-direction, the job has been aborted.\\n$D\\n$D\\nmpirun "
    "noticed that process rank 1 with PID 7 on node x exited on signal 9 (Killed).\\n$D\\n\" >&2; exit 137\n";

TEST_F(Launch, RefusesWhatCannotWorkBeforeAnythingStarts) {
  make_mpirun("exit 1");
  expect_user_error(launch({}), "give the number of ranks", "-n N");
  expect_user_error(launch({"-n", "3", "--hosts", "localhost:2"}), "-n 3", "room for 2", "localhost:3");
  expect_user_error(launch({"--hosts", "localhost:0"}), "'localhost:0' is not a host");
  expect_user_error(launch({"--hosts", "-oProxyCommand=x"}), "is not a host");
  expect_user_error(launch({"--hosts", "a,a:2"}), "names a twice");
  expect_user_error(launch({"-n", "2", "--min-ranks", "3"}), "--min-ranks 3 is more than -n 2");
  expect_user_error(launch({"-n", "2"}, {"--ranks", "2"}), "leave --ranks out");
  expect_user_error(launch({"-n", "2"}, {"optim.lr=much"}), "optim.lr");
  expect_user_error(launch({"-n", "2"}, {"parallel.data=3"}), "parallel.data = 3");
  expect_user_error(shoal({"launch", "-n", "2", "--mpirun", "none", "--", "train", "tiny.toml"}),
                    "no program none");
  EXPECT_FALSE(fs::exists(file("calls")));
}

TEST_F(Launch, NamesAHostThatDoesNotAnswer) {
  make_mpirun("exit 1");
  make_shell("[ $1 = up ] || { echo 'shell: no route' >&2; exit 255; }");
  expect_user_error(launch({"--remote-shell", "./shell", "--hosts", "localhost,down"}), "host down ",
                    "does not answer (shell: no route)");
  EXPECT_FALSE(fs::exists(file("calls")));
}

TEST_F(Launch, EndsBySignalWhileMpirunIsAskedForItsVersion) {
  write_file(file("mpirun"), "#!/bin/sh\ntouch asked\nexec sleep 60\n");
  ::chmod(file("mpirun").c_str(), 0755);
  Process process(launch_command({"-n", "2"}, {}), folder_.path());
  ASSERT_TRUE(eventually([&] { return fs::exists(file("asked")); }));
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_EQ(result.err, "shoal: stopped\n");
}

TEST_F(Launch, RefusesARemoteShellWithArgumentsUnderMpich) {
  make_mpirun("exit 1", "HYDRA build details:");
  make_shell("");
  expect_user_error(launch({"--remote-shell", "./shell -x", "--hosts", "up"}), "MPICH takes one program",
                    "put './shell -x' into a script");
  EXPECT_FALSE(fs::exists(file("calls")));
}

TEST_F(Launch, PassesOutputAndExitCodesThrough) {
  make_mpirun("\"$@\"");
  const auto good = launch({"-n", "1"});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.err, HasSubstr("step 20/20"));
  expect_user_error(launch({"-n", "1"}), "already holds a run");

  make_mpirun("echo 'shoal: error: rank 3: the loss is not finite' >&2; exit 1");
  const auto failed = launch({"-n", "1"}, {"run.name=failed"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(failed.err, "shoal: error: rank 3: the loss is not finite\n");
}

TEST_F(Launch, EndsAnMpirunThatHangsAfterItsLastRank) {
  make_mpirun("sleep 3; exec tail -f /dev/null");
  const auto result = launch({"-n", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("mpirun was ended by SIGKILL"));
}

TEST_F(Launch, HidesWhatMpirunSaysOfARankThatDied) {
  make_mpirun(std::string("printf 'a line\\n-- not a frame\\nhalf ' >&2; ") + kKilledBanner);
  const auto result = launch({"-n", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err.substr(result.err.find("a line")),
            "a line\n-- not a frame\nhalf \nshoal: error: rank 1 was ended by SIGKILL; --max-restarts K "
            "restarts from the latest checkpoint when a rank dies\n");
}

TEST_F(Launch, HidesWhatOpenMpi5SaysOfARankThatFailed) {
  make_mpirun(
      "D=$(printf -- '-%.0s' {1..74}); printf -- \"$D\\nprterun detected that one or more processes exited "
      "with non-zero status,\\nthus causing the job to be terminated. The first process to do so was:\\n\\n  "
      " Process name: [prterun-vm-1078@1,1]\\n   Exit code:    3\\n$D\\n\" >&2; exit 3");
  const auto result = launch({"-n", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("shoal: error: rank 1 failed; --max-restarts K"));
  EXPECT_THAT(result.err, Not(HasSubstr("prterun")));
}

TEST_F(Launch, HidesWhatHydraSaysOfARankThatDied) {
  make_mpirun(
      "E=$(printf -- '=%.0s' {1..83}); printf \"$E\\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION "
      "PROCESSES\\n"
      "=   PID 7 RUNNING AT x\\n=   EXIT CODE: 11\\n$E\\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: "
      "Segmentation fault (signal 11)\\nThis typically refers to a problem with your application.\\n"
      "Please see the FAQ page for debugging suggestions\\n\"; exit 11",
      "HYDRA build details:");
  const auto result = launch({"-n", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("shoal: error: a rank was ended by SIGSEGV"));
}

// A failure reported by a rank or by mpirun counts, although mpirun exits with 0.
TEST_F(Launch, KnowsOfAFailureThatMpirunForgets) {
  make_mpirun("echo 'shoal: error: rank 1: out of memory' >&2; exit 0", "HYDRA build details:");
  EXPECT_EQ(launch({"-n", "2"}).code, 1);
  const auto again = launch({"-n", "2", "--max-restarts", "1"});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, HasSubstr("a rank failed; restart 1 of 1"));

  // Open MPI 5, when a host is lost
  make_mpirun(
      "D=$(printf -- '-%.0s' {1..74}); printf -- \"$D\\nPRTE has lost communication with a remote "
      "daemon.\\n\\n  HNP daemon   : [prterun-a-7@0,0] on node a\\n  Remote daemon: [prterun-a-7@0,1] on "
      "node b\\n$D\\n\" >&2; exit 0");
  const auto lost = launch({"-n", "2"});
  EXPECT_EQ(lost.code, 1);
  EXPECT_THAT(lost.err, HasSubstr("shoal: error: a rank failed; --max-restarts K"));
  EXPECT_THAT(lost.err, Not(HasSubstr("daemon")));
}

TEST_F(Launch, ShowsWhatElseMpirunSays) {
  make_mpirun("D=$(printf -- '-%.0s' {1..74}); printf -- \"$D\\nNo slots.\\n$D\\n\" >&2; exit 3");
  const auto result = launch({"-n", "1"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("\nNo slots.\n"));
  EXPECT_THAT(result.err, HasSubstr("mpirun failed with exit code 3"));
}

TEST_F(Launch, StartsAgainFromTheLatestCheckpoint) {
  train_well({"run.name=undisturbed"});
  // Dies after its checkpoint of step 10, then at once, then not at all.
  make_mpirun(std::string("n=$(wc -l <calls)\n[ $n -eq 1 ] && \"$@\" train.steps=10\n"
                          "[ $n -ge 3 ] && exec \"$@\"\n") +
              kKilledBanner);
  const auto result = launch({"-n", "1", "--max-restarts", "3"}, {"lr_schedule.decay_steps=1000"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("rank 1 was ended by SIGKILL; restart 1 of 3, on 1 rank, from step 10\n"));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 3, on 1 rank, from step 10\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("restart 3")));
  EXPECT_EQ(final_state("tiny"), final_state("undisturbed"));
}

TEST_F(Launch, StartsAgainFromTheBeginningWhereNothingWasSaved) {
  make_mpirun(
      std::string(
          "[ $(wc -l <calls) -ge 2 ] && exec \"$@\"\n\"$@\" train.steps=5 checkpoint.interval=0; rm -r "
          "runs/tiny/checkpoints/*; test -s runs/tiny/metrics.jsonl || exit 2\n") +
      kKilledBanner);
  const auto result = launch({"-n", "1", "--max-restarts", "1"}, {"log.interval=1"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 1, on 1 rank, from the beginning"));
}

TEST_F(Launch, SaysWhenRestartsDoNotHelp) {
  make_mpirun(kKilledBanner);
  const auto result = launch({"-n", "2", "--max-restarts", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("restart 2 of 2, on 2 ranks, from the beginning (no new checkpoint in 2 attempts)"));
  EXPECT_THAT(result.err, HasSubstr("the last 3 attempts died without a new checkpoint"));
  EXPECT_THAT(result.err, HasSubstr("shoal: error: rank 1 was ended by SIGKILL, after 2 restarts\n"));
}

TEST_F(Launch, DoesNotStartAgainAfterAMistakeOfTheUser) {
  const auto expect_one_call = [&] {
    EXPECT_EQ(launch({"-n", "2", "--max-restarts", "2"}).code, 2);
    EXPECT_EQ(count(read_file(file("calls")), "\n"), 1);
    fs::remove(file("calls"));
  };
  make_mpirun("echo 'shoal: error: no data' >&2; exit 2");
  expect_one_call();
  // One rank's exit code is 2, the others' 1.
  make_mpirun("echo 'shoal: error: no data' >&2; exit 3", "HYDRA build details:");
  expect_one_call();
}

// A disk that fails in the middle of a run: the ranks call it the user's to mend, but it may work again.
TEST_F(Launch, StartsAgainAfterAnErrorOfTheUsersThatComesInTheMiddle) {
  // The first attempt ends with nothing saved, the second after a checkpoint, the third at once.
  make_mpirun(
      "n=$(wc -l <calls)\n[ $n -eq 1 ] && { \"$@\" train.steps=5; rm -r runs/tiny/checkpoints/*; }\n"
      "[ $n -eq 2 ] && \"$@\" train.steps=10\n"
      "echo 'shoal: error: rank 0: data/train.bin: Input/output error' >&2; exit 2");
  const auto result = launch({"-n", "1", "--max-restarts", "5"}, {"log.interval=1"});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("a rank failed; restart 1 of 5, on 1 rank, from the beginning\n"));
  EXPECT_THAT(result.err, HasSubstr("a rank failed; restart 2 of 5, on 1 rank, from step 10\n"));
  EXPECT_EQ(count(read_file(file("calls")), "\n"), 3);
}

// A network file system keeps the lock of a host that is lost.
TEST_F(Launch, WaitsForTheLockOfAHostThatIsLost) {
  make_mpirun(
      std::string("[ $(wc -l <calls) -ge 2 ] && exec \"$@\"\nmkdir -p runs/tiny\n"
                  "setsid flock runs/tiny/.lock sh -c 'echo process 7 on b >runs/tiny/.lock; touch held\n"
                  "while [ -e held ]; do sleep 0.01; done' >/dev/null 2>&1 &\n"
                  "until [ -e held ]; do sleep 0.01; done\n") +
      kKilledBanner);
  const auto command = launch_command({"-n", "1", "--max-restarts", "1"}, {});
  const std::string waiting =
      "runs/tiny is still in use by process 7 on b: waiting for it to end, 10m 00s at most";
  {
    Process stopped(command, folder_.path());
    ASSERT_TRUE(eventually([&] { return stopped.err_so_far().find(waiting) != std::string::npos; }));
    stopped.signal(SIGINT);
    const auto result = stopped.wait();
    EXPECT_EQ(result.code, 128 + SIGINT);
    EXPECT_THAT(result.err,
                HasSubstr("SIGINT: stopped while waiting for process 7 on b; the run is unchanged"));
  }
  fs::remove(file("held"));
  fs::remove(file("calls"));
  Process process(command, folder_.path());
  ASSERT_TRUE(eventually([&] { return process.err_so_far().find(waiting) != std::string::npos; }));
  fs::remove(file("held"));
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("rank 1 was ended by SIGKILL; restart 1 of 1, on 1 rank, from the beginning"));
}

TEST_F(Launch, LeavesOutAHostThatIsGone) {
  // The host `down` answers until the first attempt has died. The remaining ranks contradict parallel.data
  // = 4.
  make_shell("[ $1 = up ] || [ ! -e calls ]");
  make_mpirun(kKilledBanner);
  const Settings hosts = {"--remote-shell", "./shell", "--hosts",    "up:1,down:3",
                          "--max-restarts", "1",       "--max-wait", "0"};
  auto allowed = hosts;
  allowed.insert(allowed.end(), {"--min-ranks", "1"});
  const auto result = launch(allowed, {"parallel.data=4", "train.micro_batch=1"});
  EXPECT_THAT(result.err, HasSubstr("host down does not answer: it is left out"));
  EXPECT_THAT(result.err,
              HasSubstr("rank 1 on x was ended by SIGKILL; restart, on 1 rank, from the beginning\n"));
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 1, on 1 rank, from the beginning"));  // nobody was lost
  EXPECT_THAT(read_file(file("calls")), HasSubstr("--host up:1 "));
  EXPECT_THAT(read_file(file("calls")), HasSubstr("parallel.data=0"));

  fs::remove(file("calls"));
  const auto refused = launch(hosts, {"train.micro_batch=1"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err,
              HasSubstr("without down there is room for 1 rank only, which --min-ranks 4 does not allow"));
}

TEST_F(Launch, RefusesAHostsFileThatCannotBeUsed) {
  make_mpirun("exit 1");
  expect_user_error(launch({"--hosts-file", "hosts.txt"}), "hosts.txt: cannot read the hosts");
  write_file(file("hosts.txt"), "# two hosts\nup:2\ndown slots=2\n");
  expect_user_error(launch({"--hosts-file", "hosts.txt"}), "hosts.txt:3: 'down slots=2' is not a host");
  write_file(file("hosts.txt"), "up:1\n");
  expect_user_error(launch({"--hosts-file", "hosts.txt"}, {"parallel.tensor=2", "run.deterministic=layout"}),
                    "the hosts of hosts.txt have room for 1 rank, but parallel.tensor = 2");
  expect_user_error(launch({"--hosts-file", "hosts.txt", "--hosts", "up"}), "--hosts");
  EXPECT_FALSE(fs::exists(file("calls")));
}

TEST_F(Launch, StartsOnTheHostsThatAnswer) {
  make_mpirun("");
  make_shell("[ $1 = up ]");
  const auto result = launch({"--remote-shell", "./shell", "--hosts", "up:2,down:2", "--min-ranks", "1"},
                             {"parallel.data=4", "train.micro_batch=1"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("host down does not answer: it is left out"));
  EXPECT_THAT(result.err, HasSubstr("starts on 2 ranks: up:2"));
  EXPECT_THAT(read_file(file("calls")),
              testing::AllOf(HasSubstr("-n 2 "), HasSubstr("--host up:2 "), HasSubstr("parallel.data=0")));
}

// The planner's mesh, where the config's takes more ranks than are left. The tensor ranks stay, since the
// result depends on them.
TEST_F(Launch, GoesOnInAnotherMesh) {
  make_mpirun("");
  make_shell("[ $1 = up ]");
  const Settings hosts = {"--remote-shell", "./shell", "--hosts", "up:3,down:1", "--min-ranks", "1"};
  const auto exact = launch(hosts, {"parallel.tensor=2", "parallel.pipeline=2", "run.deterministic=layout"});
  EXPECT_EQ(exact.code, 0) << exact.err;
  EXPECT_THAT(exact.err, HasSubstr("without down there is room for 3 ranks, but parallel.tensor = 2 x "
                                   "parallel.pipeline = 2 ask for a multiple of 4 ranks"));
  EXPECT_THAT(exact.err, HasSubstr("starts on 2 ranks: up:2, as 2 tensor ranks"));
  EXPECT_THAT(read_file(file("calls")),
              HasSubstr("parallel.data=1 parallel.pipeline=1 parallel.tensor=2 parallel.sequence=false"));

  fs::remove(file("calls"));
  const auto other = launch(
      hosts, {"parallel.tensor=2", "parallel.pipeline=2", "train.global_batch=6", "train.micro_batch=1"});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("starts on 3 ranks: up:3"));
  EXPECT_THAT(read_file(file("calls")), HasSubstr("parallel.data=3 parallel.pipeline=1 parallel.tensor=1"));
}

// Two data ranks cannot share a sequence; two tensor ranks can.
TEST_F(Launch, LeavesTheLayoutToARunThatPlansItself) {
  make_mpirun("");
  EXPECT_EQ(launch({"-n", "2"}, {"train.global_batch=1"}).code, 2);
  EXPECT_FALSE(fs::exists(file("calls")));
  EXPECT_EQ(launch({"-n", "2"}, {"train.global_batch=1", "parallel.plan=auto"}).code, 0);
  EXPECT_TRUE(fs::exists(file("calls")));
}

TEST_F(Launch, WaitsForHosts) {
  make_mpirun("");
  make_shell("[ -e answers ] || { echo 'no route' >&2; exit 255; }");
  write_file(file("hosts.txt"), "up:2\n");
  const auto command =
      launch_command({"--remote-shell", "./shell", "--hosts-file", "hosts.txt", "--watch", "0.1"}, {});
  const std::string waiting =
      "without up there is room for 0 ranks only, which --min-ranks 1 does not allow: "
      "waiting for hosts, 10m 00s at most";
  Process process(command, folder_.path());
  ASSERT_TRUE(eventually([&] { return process.err_so_far().find(waiting) != std::string::npos; }));
  write_file(file("answers"), "");
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("host up answers again"));
  EXPECT_THAT(read_file(file("calls")), HasSubstr("--host up:2 "));

  fs::remove(file("answers"));
  fs::remove(file("calls"));
  Process stopped(command, folder_.path());
  ASSERT_TRUE(eventually([&] { return stopped.err_so_far().find(waiting) != std::string::npos; }));
  stopped.signal(SIGINT);
  EXPECT_EQ(stopped.wait().code, 128 + SIGINT);

  const auto ended = shoal(with({"launch", "--max-wait", "0"}, {command.begin() + 1, command.end()}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("shoal: error: without up there is room for 0 ranks only, which"));
  EXPECT_FALSE(fs::exists(file("calls")));

  // The only host is lost with its ranks.
  write_file(file("answers"), "");
  make_mpirun(std::string("rm answers\n") + kKilledBanner);
  Process lost(command, folder_.path());
  ASSERT_TRUE(eventually([&] { return lost.err_so_far().find(waiting) != std::string::npos; }));
  lost.signal(SIGINT);
  const auto before_restart = lost.wait();
  EXPECT_EQ(before_restart.code, 128 + SIGINT);
  EXPECT_THAT(before_restart.err, HasSubstr("SIGINT: stopped while waiting for hosts"));
  EXPECT_THAT(before_restart.err, Not(HasSubstr("shoal: error")));
}

// The first attempt saves step 10 and waits for its signal.
constexpr const char* kStopsWell =
    "[ $(wc -l <calls) -eq 1 ] && { \"$@\" train.steps=10; trap exit USR1; touch ready\n"
    "while true; do sleep 0.01; done; }\n";

TEST_F(Launch, TakesAndLeavesHostsOfTheFile) {
  train_well({"run.name=undisturbed", "run.deterministic=layout"});
  make_shell("[ -e answers ]");
  make_mpirun(std::string(kStopsWell) +
              "[ $(wc -l <calls) -eq 2 ] && { trap exit USR1; while true; do sleep 0.01; done; }\n"
              "exec \"$@\"");
  write_file(file("hosts.txt"), "localhost\nmore  # does not answer yet\n");
  Process process(launch_command({"--remote-shell", "./shell", "--hosts-file", "hosts.txt", "--watch", "0.1"},
                                 {"run.deterministic=layout"}),
                  folder_.path());
  const auto says = [&](const std::string& text) {
    return eventually([&] { return process.err_so_far().find(text) != std::string::npos; });
  };
  EXPECT_TRUE(says("host more does not answer: it is left out"));
  EXPECT_TRUE(says("starts on 1 rank: localhost:1\n"));
  ASSERT_TRUE(eventually([&] { return fs::exists(file("ready")); }));
  write_file(file("answers"), "");
  EXPECT_TRUE(says("hosts have come or gone: the ranks save and stop, to go on on localhost:1,more:1\n"));
  EXPECT_TRUE(says("hosts have come or gone; restart, on 2 ranks, from step 10\n"));
  write_file(file("hosts.txt"), "localhost\nmore: # a mistake\n");
  EXPECT_TRUE(
      says("hosts.txt:2: 'more:' is not a host; write HOST or HOST:RANKS, one per line; the hosts stay as "
           "they were"));
  write_file(file("hosts.txt"), "localhost\n");
  EXPECT_TRUE(says("hosts have come or gone; restart, on 1 rank, from step 10\n"));
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(final_state("tiny"), final_state("undisturbed"));
}

TEST_F(Launch, LeavesOutANewHostThatBreaksTheRun) {
  make_shell("");
  make_mpirun(std::string(kStopsWell) +
              "[ $(wc -l <calls) -eq 2 ] && { echo 'shoal: error: rank 1: no such library' >&2; exit 1; }\n"
              "exec \"$@\"");
  write_file(file("hosts.txt"), "localhost\n");
  Process process(
      launch_command({"--remote-shell", "./shell", "--hosts-file", "hosts.txt", "--watch", "0.1"}, {}),
      folder_.path());
  ASSERT_TRUE(eventually([&] { return fs::exists(file("ready")); }));
  write_file(file("hosts.txt"), "localhost\nbad:1\n");
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("hosts have come or gone; restart, on 2 ranks, from step 10\n"));
  EXPECT_THAT(result.err, HasSubstr("host bad is left out for 6 s"));
  EXPECT_THAT(result.err, HasSubstr("a rank failed; restart, on 1 rank, from step 10\n"));
}

TEST_F(Launch, StopsRanksOnceAndThenEndsThem) {
  make_mpirun(
      "trap 'echo asked >&2' USR1; trap 'echo told >&2; exit 1' TERM; echo ready >&2\n"
      "while true; do sleep 0.01; done");
  Process process(launch_command({"-n", "2", "--max-restarts", "5"}, {}), folder_.path());
  ASSERT_TRUE(eventually([&] { return process.err_so_far().find("ready") != std::string::npos; }));
  process.signal(SIGINT);
  ASSERT_TRUE(eventually([&] { return process.err_so_far().find("asked") != std::string::npos; }));
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_THAT(result.err, HasSubstr("SIGINT: the ranks save and stop"));
  EXPECT_THAT(result.err, HasSubstr("told"));
  EXPECT_THAT(result.err, Not(HasSubstr("restart")));
}

// This mpirun ignores SIGUSR1, as Open MPI's does while it has no ranks to forward it to.
TEST_F(Launch, EndsRanksThatHaveNotBegun) {
  make_mpirun("trap '' USR1; touch ready; while true; do sleep 0.01; done");
  for (const int signal : {SIGTERM, SIGUSR1}) {
    fs::remove(file("ready"));
    Process process(launch_command({"-n", "2"}, {}), folder_.path());
    ASSERT_TRUE(eventually([&] { return fs::exists(file("ready")); }));
    process.signal(signal);
    EXPECT_EQ(process.wait().code, 128 + signal);
  }
}

// A job's script takes 0 for everything that is saved.
TEST_F(Launch, AStopWithoutACheckpointIsNoSuccess) {
  make_mpirun("trap 'exit 0' USR1; echo begun >&2; while true; do sleep 0.01; done");
  const auto code_of_stop = [&] {
    Process process(launch_command({"-n", "2"}, {}), folder_.path());
    EXPECT_TRUE(eventually([&] { return process.err_so_far().find("begun") != std::string::npos; }));
    process.signal(SIGTERM);
    return process.wait().code;
  };
  EXPECT_EQ(code_of_stop(), 128 + SIGTERM);
  fs::create_directories(file("runs/tiny/checkpoints/step-00000001"));
  EXPECT_EQ(code_of_stop(), 0);
}

TEST_F(Launch, GivesVariablesToTheRanksOfAllHosts) {
  make_mpirun("exit 0");
  const auto set = [](const char* name) { ::setenv(name, "1", 1); };
  for (const char* name : {"NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "NO_COLOR", "SHOAL_TESTED"}) set(name);
  launch({"-n", "1"});
  for (const char* name : {"NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "NO_COLOR", "SHOAL_TESTED"}) {
    EXPECT_THAT(read_file(file("calls")), HasSubstr(fmt::format("-x {} ", name)));
    ::unsetenv(name);
  }
}

TEST_F(Launch, ShowsTheHelpOfItsCommand) {
  make_mpirun("\"$@\"");
  EXPECT_THAT(shoal({"launch", "--mpirun", "./mpirun", "-n", "1", "--", "train", "--help"}).out,
              HasSubstr("shoal train"));
}

// A script's jobs in the background begin with SIGINT ignored.
TEST_F(Launch, LeavesIgnoredSignalsIgnored) {
  make_mpirun("kill -INT $PPID; kill -TERM $PPID; exit 0");
  const auto line = "cd '" + folder_.path().string() + "' && trap '' INT TERM && exec '" + SHOAL_BINARY +
                    "' launch --mpirun ./mpirun -n 1 -- train tiny.toml 2>err";
  const int status = std::system(line.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0) << read_file(file("err"));
  EXPECT_TRUE(fs::exists(file("calls")));
  EXPECT_THAT(read_file(file("err")), Not(HasSubstr("the ranks save and stop")));
}

TEST_F(Launch, LeavesNothingBehindWhenItIsKilled) {
  make_mpirun("trap 'touch ended; exit' TERM; touch ready; while true; do sleep 0.01; done");
  Process process(launch_command({"-n", "2"}, {}), folder_.path());
  ASSERT_TRUE(eventually([&] { return fs::exists(file("ready")); }));
  process.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return fs::exists(file("ended")); }));
}

}  // namespace
}  // namespace shoal::test
