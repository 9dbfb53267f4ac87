// Runs that are stopped, killed, locked out or cannot save: no data is lost, and a resumed run has the same
// result as an undisturbed one, bit for bit.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <random>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Interruption : public TinyRuns {
 protected:
  // A started run.
  std::unique_ptr<Process> start(const Settings& settings, const std::string& sign) const {
    auto process = std::make_unique<Process>(train_command(settings), folder_.path());
    EXPECT_TRUE(eventually([&] { return process->err_so_far().find(sign) != std::string::npos; }))
        << process->err_so_far();
    return process;
  }
  void expect_same(const std::string& name, const std::string& undisturbed) const {
    EXPECT_EQ(final_state(name), final_state(undisturbed));
    EXPECT_EQ(reproducible_metrics(name), reproducible_metrics(undisturbed));
  }
};

class Signals : public Interruption, public testing::WithParamInterface<int> {};

TEST_P(Signals, SaveAndEndTheRunWell) {
  const Settings length = {"train.steps=1500", "log.interval=5", "eval.interval=500",
                           "checkpoint.interval=0"};
  auto settings = [&](const Settings& more) {
    auto all = length;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto process = start(length, "step    5/1500");
  process->signal(GetParam());
  const auto result = process->wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr(GetParam() == SIGINT ? "stopped by SIGINT after step "
                                                         : "stopped by SIGTERM after step "));
  EXPECT_THAT(result.err, HasSubstr("go on with init.from=resume"));
  ASSERT_FALSE(fs::exists(file("runs/tiny/checkpoints/step-00001500")));

  train_well(settings({"init.from=resume"}));
  train_well(settings({"run.name=undisturbed"}));
  expect_same("tiny", "undisturbed");
}

INSTANTIATE_TEST_SUITE_P(Both, Signals, testing::Values(SIGINT, SIGTERM),
                         [](const auto& which) { return which.param == SIGINT ? "SIGINT" : "SIGTERM"; });

TEST_F(Interruption, KillingLosesNothingThatWasSaved) {
  const Settings length = {"train.steps=120", "eval.batches=1"};
  auto undisturbed = length, saving = length, resuming = length;
  undisturbed.insert(undisturbed.end(), {"run.name=undisturbed", "checkpoint.interval=0"});
  saving.insert(saving.end(), {"checkpoint.interval=1", "checkpoint.keep=2"});
  resuming = saving;
  resuming.push_back("init.from=resume");
  train_well(undisturbed);

  const auto latest = [&] {
    std::error_code absent;
    return fs::read_symlink(file("runs/tiny/checkpoints/latest"), absent).string();
  };
  std::mt19937 random(1);
  for (int kills = 0; kills < 10; ++kills) {
    const auto before = latest();
    Process process(train_command(before.empty() ? saving : resuming), folder_.path());
    ASSERT_TRUE(eventually([&] { return latest() > before; })) << process.err_so_far();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    process.signal(SIGKILL);
    const auto result = process.wait();
    if (result.code == 0) break;  // on a fast machine the run may reach its end first
    ASSERT_EQ(result.code, 128 + SIGKILL) << result.err;
    ASSERT_GE(latest(), before);
  }
  train_well(resuming);
  expect_same("tiny", "undisturbed");
}

TEST_F(Interruption, ASecondProcessIsKeptOut) {
  const auto first = start({"train.steps=1000000000"}, "step         10/");
  for (const std::string from : {"scratch", "resume"}) {
    expect_user_error(train({"init.from=" + from}), "runs/tiny is in use by process", "run.name");
  }
  first->signal(SIGTERM);
  EXPECT_EQ(first->wait().code, 0);
}

// While a run is running, a file replaces its folder of checkpoints.
TEST_F(Interruption, AFolderThatCannotBeWrittenDoesNotStopTheRun) {
  const auto process = start({"train.steps=1000000000"}, "step         20/");
  ASSERT_TRUE(eventually([&] { return fs::exists(file("runs/tiny/checkpoints/latest/manifest.json")); }));
  // In one call, since the run would make a folder that is missing.
  write_file(file("runs/tiny/moved"), "");
  ASSERT_EQ(renameat2(AT_FDCWD, file("runs/tiny/moved").c_str(), AT_FDCWD,
                      file("runs/tiny/checkpoints").c_str(), RENAME_EXCHANGE),
            0);
  ASSERT_TRUE(eventually(
      [&] { return process->err_so_far().find("a checkpoint could not be saved: ") != std::string::npos; }));
  const auto size = process->err_so_far().size();
  EXPECT_TRUE(
      eventually([&] { return process->err_so_far().find(" INFO] step ", size) != std::string::npos; }));
  process->signal(SIGINT);
  const auto result = process->wait();
  expect_user_error_at_the_end(result, "could not be saved", "runs/tiny/checkpoints", "Not a directory");

  fs::remove(file("runs/tiny/checkpoints"));
  fs::rename(file("runs/tiny/moved"), file("runs/tiny/checkpoints"));
  EXPECT_EQ(shoal({"eval", "--checkpoint", "runs/tiny", "train.threads=1"}).code, 0);
}

TEST_F(Interruption, DataThatAreCutShortAreNamed) {
  const auto process = start({"train.steps=1000000000"}, "step         10/");
  fs::resize_file(file("data/train.bin"), 0);
  expect_user_error_at_the_end(process->wait(), "data/train.bin was cut short", "restore it");
}

class FullDisk : public Interruption {
 protected:
  // Saves ten steps, then the disk is full, then it has space again.
  void expect_survival(
      const std::function<Result(const Settings&)>& on_full_disk,
      const std::function<void()>& make_room = [] {}) const {
    train_well({"run.name=undisturbed"});
    const auto result = on_full_disk({"init.from=resume", "checkpoint.interval=5"});
    expect_user_error_at_the_end(result, "the state after step 20 could not be saved",
                                 "The last one, step-00000010, is untouched");
    // The run completes nevertheless.
    EXPECT_THAT(result.err, HasSubstr("a checkpoint could not be saved: the checkpoint of step 15"));
    EXPECT_THAT(result.err, HasSubstr("step 20/20"));
    make_room();
    train_well({"init.from=resume"});
    expect_same("tiny", "undisturbed");
  }
};

// Files are limited to 40 blocks of 512 bytes, which stops only the writing of shards.
TEST_F(FullDisk, AsALimitOnFiles) {
  train_well({"train.steps=10"});
  expect_survival([&](const Settings& settings) {
    std::string line =
        "cd '" + folder_.path().string() + "' && ulimit -f 40 && exec '" + SHOAL_BINARY "' train tiny.toml";
    for (const auto& setting : settings) line += " " + setting;
    const int status = std::system(
        ("/bin/sh -c \"" + line + "\" >'" + file("out").string() + "' 2>'" + file("err").string() + "'")
            .c_str());
    return Result{WEXITSTATUS(status), read_file(file("out")), read_file(file("err"))};
  });
}

TEST_F(FullDisk, AsASmallFileSystem) {
  fs::create_directories(file("runs/tiny"));
  if (::mount("tmpfs", file("runs/tiny").c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "needs the right to mount a file system";
  }
  const struct Unmount {
    fs::path path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{file("runs/tiny")};

  train_well({"train.steps=10"});
  expect_survival(
      [&](const Settings& settings) {
        std::ofstream filler(file("runs/tiny/filler"), std::ios::binary);
        while (filler.put('x').flush()) {
        }
        const auto result = train(with(settings, {"log.tensorboard=true"}));
        EXPECT_THAT(result.err, AllOf(HasSubstr("runs/tiny has 0 B free"), HasSubstr("none can be saved")));
        return result;
      },
      [&] { fs::remove(file("runs/tiny/filler")); });
}

}  // namespace
}  // namespace shoal::test
