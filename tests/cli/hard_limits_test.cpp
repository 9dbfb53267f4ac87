// What a system may do to a program: too little memory, closed streams, folders that cannot be written, file
// systems that fail, a clock that runs backwards, another locale, odd names, and very many files.
#include <fmt/format.h>
#include <sys/mount.h>

#include <cerrno>

#include "cli/tiny_runs.h"
#include "data/llmc_files.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class HardLimits : public TinyRuns {
 protected:
  // Runs a line of the shell, in which `shoal` is the program.
  Result shell(const std::string& line) const {
    write_file(file("line.sh"),
               "program='" SHOAL_BINARY "'\nshoal() { \"$program\" \"$@\"; }\n" + line + "\n");
    const int status =
        std::system(("cd '" + folder_.path().string() + "' && bash line.sh >out 2>err").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(file("out")),
            read_file(file("err"))};
  }
};

class Memory : public HardLimits {
 protected:
  Memory() {
    if (kSanitized) return;
    // The addresses that the program and its libraries take.
    const auto least = [&](double megabytes) {
      return shell(limit_of(megabytes) + "shoal config --explain optim").code == 0;
    };
    while (base_ < 1024 && !least(base_)) base_ += 8;
  }
  static std::string limit_of(double megabytes) {
    return "ulimit -v " + std::to_string(static_cast<long>(1024 * megabytes)) + "\n";
  }
  Result limited(double more_megabytes, const std::string& line) const {
    return shell(limit_of(base_ + more_megabytes) + line);
  }
  double base_ = 64;
};

TEST_F(Memory, ThatIsTooLittleIsNamed) {
  if (kSanitized) GTEST_SKIP();
  for (const std::string command :
       {"train tiny.toml --ranks 4", "train tiny.toml", "prepare synthetic --out new --size 300000"}) {
    for (const double megabytes : {8, 40, 120}) {
      const auto result = limited(megabytes, "rm -rf runs new; shoal " + command);
      if (result.code == 0) continue;
      EXPECT_THAT(result.code, ::testing::AnyOf(1, 2)) << command << megabytes << result.err;
      EXPECT_THAT(result.err, AllOf(HasSubstr("shoal: error: "), HasSubstr("memory"), HasSubstr("ulimit -v")))
          << command << megabytes;
    }
  }
  expect_user_error_at_the_end(limited(16, "rm -rf runs; shoal train tiny.toml"), "this run needs ",
                               "(ulimit -v) are available");
}

TEST_F(Memory, IsEnoughUnderALimit) {
  if (kSanitized) GTEST_SKIP();
  const auto result = limited(300, "shoal train tiny.toml --ranks 4");
  EXPECT_EQ(result.code, 0) << result.err;
}

using Streams = HardLimits;

TEST_F(Streams, ThatAreClosedAreNotReused) {
  const auto result = shell(
      "\"$program\" train tiny.toml train.steps=1000000000 <&- >&- 2>&- &\n"
      "until grep -qs '\"step\":20' runs/tiny/metrics.jsonl || ! kill -0 $!; do sleep 0.01; done\n"
      "ls -l /proc/$!/fd; kill $!; wait $!");
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* stream : {"0 -> /dev/null\n", "1 -> /dev/null\n", "2 -> /dev/null\n"})
    EXPECT_THAT(result.out, HasSubstr(stream));
}

TEST_F(Streams, ThatCannotBeWrittenAreReported) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  for (const std::string line :
       {"shoal --help >/dev/full", "shoal config --explain >/dev/full", "shoal --version >&-"}) {
    const auto result = shell(line);
    EXPECT_EQ(result.code, 2) << line;
    EXPECT_THAT(result.err, HasSubstr("shoal: error: cannot write to standard output")) << line;
  }
  EXPECT_EQ(shell("shoal train absent.toml 2>/dev/full").code, 2);
  EXPECT_EQ(shell("shoal train tiny.toml 2>/dev/full").code, 0);
  EXPECT_THAT(read_file(file("runs/tiny/train.log")), HasSubstr("done: 20 steps"));
}

// Files are limited to 200 blocks of 512 bytes or 1 KiB.
TEST_F(HardLimits, ADownloadThatDoesNotFitIsNamed) {
  SHOAL_NEEDS_SHARED("tinyshakespeare.txt");
  const auto result =
      shell("ulimit -f 200\nXDG_CACHE_HOME=$PWD/cache SHOAL_DATA_DIR=file://" +
            fs::canonical(shared_data()).string() + " shoal prepare shakespeare-char --out plays");
  expect_user_error(result, "cannot write " + file("cache/shoal/tinyshakespeare.txt.partial").string(),
                    "File too large; XDG_CACHE_HOME names another place");
}

// A reader that goes away ends a command quietly, as it ends others, but not a run.
TEST_F(Streams, WhoseReaderIsGone) {
  const auto code_of = [&](const std::string& command) {
    return shell("rm -f gone; { until [ -e gone ]; do sleep 0.01; done; " + command +
                 "; } | { exec <&-; touch gone; }; exit ${PIPESTATUS[0]}")
        .code;
  };
  EXPECT_EQ(code_of("shoal config --explain"), 128 + SIGPIPE);
  EXPECT_EQ(code_of("shoal train tiny.toml 2>&1"), 0);
  EXPECT_THAT(read_file(file("runs/tiny/train.log")), HasSubstr("done: 20 steps"));
  EXPECT_EQ(code_of("shoal launch -n 1 -- train tiny.toml run.name=launched 2>&1"), 0);
  EXPECT_THAT(read_file(file("runs/launched/train.log")), HasSubstr("done: 20 steps"));
}

class ReadOnly : public HardLimits {
 protected:
  ReadOnly() {
    train_well();
    fs::create_directory(file("frozen"));
    const auto from = file("runs"), to = file("frozen");
    mounted_ = ::mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) == 0;
    frozen_ =
        mounted_ && ::mount(nullptr, to.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }
  ~ReadOnly() override {
    if (mounted_) ::umount2(file("frozen").c_str(), MNT_DETACH);
  }
  bool mounted_ = false, frozen_ = false;
};

TEST_F(ReadOnly, RunsCanBeUsed) {
  if (!frozen_) GTEST_SKIP() << "needs the right to mount a file system";
  for (const Settings& command : {Settings{"eval", "--checkpoint", "frozen/tiny"},
                                  {"sample", "--checkpoint", "frozen/tiny", "--max-tokens", "3"},
                                  {"export", "--checkpoint", "frozen/tiny", "--out", "exported"},
                                  {"checkpoint", "list", "frozen/tiny", "--verify"},
                                  {"plot", "frozen/tiny", "-o", "curves.svg"},
                                  {"report", "frozen/tiny", "-o", "page.html"}}) {
    const auto result = shoal(command);
    EXPECT_EQ(result.code, 0) << command[0] << result.err;
  }
}

TEST_F(ReadOnly, FoldersAreNamed) {
  if (!frozen_) GTEST_SKIP() << "needs the right to mount a file system";
  expect_user_error(train({"run.dir=frozen", "run.name=new"}), "frozen/new", "Read-only file system");
  expect_user_error(train({"run.dir=frozen", "init.from=resume", "train.steps=30"}), "frozen/tiny",
                    "Read-only file system");
  for (const Settings& command : {Settings{"prepare", "synthetic", "--out", "frozen/data"},
                                  {"export", "--checkpoint", "runs/tiny", "--out", "frozen/out"},
                                  {"plot", "runs/tiny", "-o", "frozen/curves.svg"},
                                  {"report", "runs/tiny", "-o", "frozen/page.html"},
                                  {"man", "--out", "frozen/man"}}) {
    expect_user_error(shoal(command), "frozen/", "Read-only file system");
  }
}

#ifdef SHOAL_FAILING_CALLS
constexpr const char* kPreload = "LD_PRELOAD=" SHOAL_FAILING_CALLS;

// A folder on another host, in which calls fail once or from then on. The run says so or survives it, and
// goes on afterwards to the same end.
class FailingFiles : public HardLimits, public ::testing::WithParamInterface<const char*> {};

TEST_P(FailingFiles, LoseNothing) {
  const std::string call = GetParam();
  train_well({"run.name=whole"});
  // The first call that fails, and how many do.
  for (const std::string which : {"1 1000000", "3 1", "4 1000000"}) {
    fs::remove_all(file("runs/tiny"));
    const auto result =
        run({"train", "tiny.toml"}, folder_.path(),
            {kPreload, fmt::format("SHOAL_FAILING_CALL={} runs/tiny {} {}", call, ESTALE, which)});
    if (result.code != 0) {
      expect_user_error_at_the_end(result, "runs/tiny", "Stale file handle");
    } else {
      EXPECT_EQ(which, "3 1") << call;
    }
    train_well({"init.from=auto"});
    expect_same("tiny", "whole");
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, FailingFiles, ::testing::Values("open", "write", "fsync", "rename", "mkdir"),
                         [](const auto& call) { return std::string(call.param); });

TEST_F(HardLimits, DataThatCannotBeReadAreNamed) {
  train_well({"train.steps=10"});
  for (const std::string name : {"tiny.toml", "data/meta.json", "runs/tiny/metrics.jsonl"}) {
    const auto before = read_file(file("runs/tiny/metrics.jsonl"));
    const auto result = run({"train", "tiny.toml", "init.from=resume"}, folder_.path(),
                            {kPreload, "SHOAL_FAILING_CALL=read " + name + " 5 1 1000000"});
    expect_user_error_at_the_end(result, name, "Input/output error");
    EXPECT_EQ(read_file(file("runs/tiny/metrics.jsonl")), before);
  }
}

// An old dataset is removed once the new one would survive a loss of power.
TEST_F(HardLimits, ADatasetThatIsNotOnTheDiskReplacesNone) {
  const auto before = contents("data");
  for (const int call : {1, 2, 3, 4}) {  // train.bin, val.bin, meta.json, and their folder
    const auto result =
        run({"prepare", "synthetic", "--out", "data", "--size", "10000", "--force"}, folder_.path(),
            {kPreload, fmt::format("SHOAL_FAILING_CALL=fsync data.partial {} {} 1", EIO, call)});
    EXPECT_NE(result.code, 0) << call;
    EXPECT_THAT(result.err, HasSubstr("Input/output error")) << call;
    EXPECT_TRUE(contents("data") == before) << call;
  }
}

TEST_F(HardLimits, ADatasetThatCannotBeMovedIsKept) {
  const auto before = contents("data");
  const auto result =
      run({"prepare", "synthetic", "--out", "data", "--size", "10000", "--force"}, folder_.path(),
          {kPreload, fmt::format("SHOAL_FAILING_CALL=rename data {} 1 1000000", EBUSY)});
  expect_user_error_at_the_end(result, "cannot swap", "data.partial is whole: move it to another place");
  EXPECT_TRUE(contents("data") == before);
  EXPECT_TRUE(fs::exists(file("data.partial/meta.json")));
}

// A signal comes when the second file, or the file a second time, is opened.
TEST_F(HardLimits, AnExportThatIsStoppedLeavesNothing) {
  train_well({"train.steps=1"});
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) found.push_back(entry.path().filename());
    return found;
  };
  const auto before = names();
  for (const auto& [format, part, call] :
       {std::tuple("hf", "model.safetensors", 1), std::tuple("nanogpt-safetensors", ".new.partial", 2),
        std::tuple("llmc", ".new.partial", 2)}) {
    const auto result =
        run({"export", "--checkpoint", "runs/tiny", "--out", "new", "--format", format}, folder_.path(),
            {kPreload, fmt::format("SHOAL_FAILING_CALL=open {} {} {} 1", part, -SIGINT, call)});
    EXPECT_EQ(result.code, 128 + SIGINT) << format << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped by SIGINT; nothing was exported")) << format;
    EXPECT_THAT(names(), ::testing::UnorderedElementsAreArray(before)) << format;
  }
}

// Some network file systems have no locks.
TEST_F(HardLimits, ADatasetNeedsNoLocks) {
  const auto result = run({"prepare", "synthetic", "--out", "unlocked", "--size", "10000"}, folder_.path(),
                          {kPreload, fmt::format("SHOAL_FAILING_CALL=flock unlocked {} 1 1000000", ENOTSUP)});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("cannot be locked"), HasSubstr("let no other process write")));
  EXPECT_TRUE(fs::exists(file("unlocked/meta.json")));
}

TEST_F(HardLimits, ADownloadNeedsNoLocks) {
  SHOAL_NEEDS_SHARED("tinyshakespeare.txt");
  const auto others = file("cache/shoal/tinyshakespeare.txt.partial");
  write_file(others, "of another process");
  const auto result = run({"prepare", "shakespeare-char", "--out", "plays"}, folder_.path(),
                          {kPreload, fmt::format("SHOAL_FAILING_CALL=flock cache {} 1 1000000", ENOLCK),
                           "SHOAL_DATA_DIR=file://" + fs::canonical(shared_data()).string(),
                           "XDG_CACHE_HOME=" + file("cache").string()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(read_file(others), "of another process");
}

// vfat, for one, has no links. The newest checkpoint is the latest then, and the best is marked.
TEST_F(HardLimits, ARunNeedsNoLinks) {
  const auto train_without_links = [&](int error, const Settings& settings) {
    const auto result = run(
        train_command(with({"init.from=auto", "checkpoint.keep=1", "eval.interval=20"}, settings)),
        folder_.path(), {kPreload, fmt::format("SHOAL_FAILING_CALL=symlink runs/tiny {} 1 1000000", error)});
    EXPECT_EQ(result.code, 0) << result.err;
    const auto said = result.err.find("cannot hold links");
    EXPECT_NE(said, std::string::npos) << result.err;
    EXPECT_EQ(said, result.err.rfind("cannot hold links")) << result.err;
  };
  const auto checkpoints = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(file("runs/tiny/checkpoints")))
      names.push_back(entry.path().filename());
    return names;
  };
  using ::testing::UnorderedElementsAre;
  train_without_links(EPERM, {"train.steps=20"});
  EXPECT_THAT(checkpoints(), UnorderedElementsAre("step-00000020"));
  train_without_links(ENOSYS, {"train.steps=40", "optim.lr=5"});  // which makes the model worse
  EXPECT_THAT(checkpoints(), UnorderedElementsAre("step-00000020", "step-00000040"));
  // Links that another system made would not follow.
  for (const char* name : {"latest", "best"})
    fs::create_directory_symlink("step-00000020", file("runs/tiny/checkpoints") / name);
  train_without_links(EOPNOTSUPP, {"train.steps=50", "optim.lr=5"});
  EXPECT_THAT(checkpoints(), UnorderedElementsAre("step-00000020", "step-00000050"));
  EXPECT_THAT(shoal({"eval", "--checkpoint", "runs/tiny"}).out, HasSubstr("after step 50"));
}

TEST_F(HardLimits, ARunNeedsNoPictureOfItsPlan) {
  write_file(file("runs/tiny/plan.svg"), "of an earlier start");
  const auto result = run(train_command({"parallel.plan=auto"}), folder_.path(),
                          {kPreload, fmt::format("SHOAL_FAILING_CALL=open plan.svg {} 1 1000000", ENOSPC),
                           "XDG_CACHE_HOME=" + file("cache").string()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("plan.svg"), HasSubstr("No space left on device")));
  EXPECT_FALSE(fs::exists(file("runs/tiny/plan.svg")));
}

TEST_F(HardLimits, AClockThatRunsBackwardsChangesNoTime) {
  const auto result = run({"train", "tiny.toml", "log.tensorboard=true"}, folder_.path(),
                          {kPreload, "SHOAL_FAILING_CLOCK=3600"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("ETA "), Not(HasSubstr("ETA -")), Not(HasSubstr("nan")),
                                Not(HasSubstr("inf"))));
  std::istringstream lines(read_file(file("runs/tiny/metrics.jsonl")));
  for (std::string line; std::getline(lines, line);)
    EXPECT_THAT(line, AllOf(Not(HasSubstr("null")), Not(HasSubstr("_s\":-")), Not(HasSubstr("step\":-"))));
}

// The library below notices a change of the locale, which would change how numbers are read and written
// everywhere.
TEST_F(HardLimits, ALocaleChangesNoNumber) {
  const std::vector<std::string> german = {kPreload, "LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8"};
  train_well({"run.name=usual"});
  for (const Settings& command : {Settings{"train", "tiny.toml"},
                                  {"eval", "--checkpoint", "runs/tiny"},
                                  {"sample", "--checkpoint", "runs/tiny", "--max-tokens", "3"},
                                  {"report", "runs/tiny", "-o", "page.html"},
                                  {"plot", "runs/tiny", "-o", "curves.svg"}}) {
    const auto result = run(command, folder_.path(), german);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("setlocale")));
  }
  expect_same("tiny", "usual");
}
#endif

TEST_F(HardLimits, NamesMayHaveBlanksQuotesAndOtherScripts) {
  const std::string name = "it's \"Größe\" $HOME & 東京 ; x";
  fs::rename(file("data"), file("data " + name));
  fs::rename(file("tiny.toml"), file(name + ".toml"));
  const Settings settings = {name + ".toml", "data.dir=data " + name, "run.dir=runs " + name};
  const auto runs = "runs " + name + "/" + name;
  for (const Settings& command :
       {with({"train"}, with(settings, {"--trace", "trace " + name + ".json"})),
        with({"launch", "-n", "2", "--", "train"},
             with(settings, {"init.from=resume", "train.steps=24", "--trace", "again " + name + ".json"})),
        Settings{"eval", "--checkpoint", runs}, Settings{"sample", "--checkpoint", runs, "--max-tokens", "3"},
        Settings{"export", "--checkpoint", runs, "--out", "out " + name + "/hf"},
        Settings{"eval", "--checkpoint", "hf:out " + name + "/hf", "data.dir=data " + name},
        Settings{"plot", runs, "-o", "curves " + name + ".svg"},
        Settings{"report", runs, "-o", "page " + name + ".html"},
        Settings{"trace", "trace " + name + ".json", "-o", "step " + name + ".svg"}}) {
    const auto result = shoal(command);
    EXPECT_EQ(result.code, 0) << command[0] << result.err;
  }
  EXPECT_THAT(read_file(file(runs) / "train.log"), HasSubstr("done: 24 steps"));
}

TEST_F(HardLimits, TenThousandFilesAreADataset) {
  const std::vector<std::uint16_t> tokens(20, 7);
  const auto val = file("many/x_val_000000.bin");
  write_file(val, llmc_file(tokens));
  for (int i = 0; i < 10'000; ++i) {
    const auto number = std::to_string(1'000'000 + i).substr(1);
    fs::create_hard_link(val, file("many/x_train_" + number + ".bin"));
  }
  const auto result =
      shell("ulimit -n 64; shoal train tiny.toml data.dir=many train.steps=2 eval.interval=0");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("data: 10001 files of llm.c"));
}

}  // namespace
}  // namespace shoal::test
