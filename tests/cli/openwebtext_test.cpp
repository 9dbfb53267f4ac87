// shoal prepare openwebtext as a user runs it: killed, out of space, and with more text than fits in memory.
#include <sys/mount.h>

#include <random>

#include "cli/tiny_runs.h"
#include "data/temp_folder.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;

std::string document(int i) {
  std::string text = "Document " + std::to_string(i) + "\n\n\n";
  for (int line = 0; line < 400; ++line) {
    text += "Line " + std::to_string(line * i % 977) + " of some text that was found somewhere, isn't it?\n";
  }
  return text;
}

class OpenWebTextCommand : public ::testing::Test {
 protected:
  void SetUp() override { SHOAL_NEEDS_SHARED("gpt2/encoder.json"); }

  std::vector<std::string> command(const std::string& from, const std::string& out,
                                   const std::string& save_every = "0") const {
    return {"prepare",        "openwebtext", "--from",       from,       "--out",     out,
            "--val-fraction", "0.05",        "--save-every", save_every, "--threads", "2"};
  }
  std::vector<std::string> environment() const {
    return {"SHOAL_DATA_DIR=" + fs::absolute(shared_data()).string()};
  }
  Result shoal(const std::vector<std::string>& arguments) const {
    return run(arguments, folder_.path(), environment());
  }
  // A tar of tars like the corpus, made with the same tools. `how`: options of tar.
  bool make_corpus(int subsets, const std::string& how, const std::string& ending) const {
    for (int s = 0; s < subsets; ++s) {
      for (int i = 0; i < 40; ++i) {
        write_file(folder_ / fs::path("txt/" + std::to_string(1000 + i) + ".txt"), document(s * 40 + i));
      }
      const auto name = "openwebtext/urlsf_subset" + std::to_string(100 + s) + ending;
      fs::create_directories(folder_ / "openwebtext");
      if (!tool("tar " + how + " " + name + " -C txt .")) return false;
    }
    return tool("tar -cf openwebtext.tar openwebtext");
  }
  bool tool(const std::string& line) const {
    return std::system(
               ("cd '" + folder_.path().string() + "' && XZ_OPT=-0 " + line + " 2>/dev/null").c_str()) == 0;
  }
  void expect_same(const std::string& one, const std::string& other) const {
    for (const auto* name : {"train.bin", "val.bin", "meta.json"}) {
      EXPECT_TRUE(read_file(folder_ / one / name) == read_file(folder_ / other / name)) << name;
    }
    EXPECT_FALSE(fs::exists(folder_ / (one + ".partial")));
  }

  TempDir folder_;
};

TEST_F(OpenWebTextCommand, KillingLosesNothingThatWasSaved) {
  // Not compressed, so that it is large enough to be read in parts.
  if (!make_corpus(40, "-cf", ".tar")) GTEST_SKIP() << "needs tar";
  const auto undisturbed = shoal(command("openwebtext.tar", "undisturbed"));
  ASSERT_EQ(undisturbed.code, 0) << undisturbed.err;
  EXPECT_THAT(undisturbed.out, HasSubstr("vocabulary 50257"));

  std::mt19937 random(1);
  const auto saved = [&] { return read_file(folder_ / "killed.partial/progress.json"); };
  int kills = 0;
  for (bool done = false; !done;) {
    const auto before = saved();
    Process process(command("openwebtext.tar", "killed"), folder_.path(), environment());
    ASSERT_TRUE(eventually([&] { return saved() != before || fs::exists(folder_ / "killed"); }))
        << process.err_so_far();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    process.signal(SIGKILL);
    const auto result = process.wait();
    done = fs::exists(folder_ / "killed");
    if (result.code == 128 + SIGKILL) ++kills;
    if (!before.empty()) {
      EXPECT_THAT(result.err, HasSubstr("resuming the interrupted preparation"));
    }
    ASSERT_LT(kills, 100);
  }
  EXPECT_GE(kills, 1);
  RecordProperty("kills", kills);
  expect_same("killed", "undisturbed");
}

TEST_F(OpenWebTextCommand, AFullDiskKeepsWhatWasDone) {
  if (!make_corpus(6, "-cJf", "_data.xz")) GTEST_SKIP() << "needs tar and xz";
  ASSERT_EQ(shoal(command("openwebtext", "undisturbed")).code, 0);
  const auto needed = fs::file_size(folder_ / "undisturbed/train.bin");
  fs::create_directories(folder_ / "disk");
  const auto size = "size=" + std::to_string(needed / 2);
  if (::mount("tmpfs", (folder_ / "disk").c_str(), "tmpfs", 0, size.c_str()) != 0) {
    GTEST_SKIP() << "needs the right to mount a file system";
  }
  const struct Unmount {
    fs::path path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{folder_ / "disk"};

  const auto result = shoal(command("openwebtext", "disk/data"));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("No space left on device"));
  EXPECT_THAT(result.err, HasSubstr("the same command resumes there"));
  EXPECT_FALSE(fs::exists(folder_ / "disk/data"));
  ASSERT_EQ(::mount("tmpfs", (folder_ / "disk").c_str(), "tmpfs", MS_REMOUNT, "size=256m"), 0);
  const auto resumed = shoal(command("openwebtext", "disk/data"));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resuming the interrupted preparation"));
  expect_same("disk/data", "undisturbed");
}

// A document of 160 MiB takes about 40 MiB of memory on two threads, and one of ten times the size no more.
TEST_F(OpenWebTextCommand, MemoryDoesNotGrowWithADocument) {
  std::string block;
  while (block.size() < 1 << 20) block += "It was the best of times, it was the worst of times. ";
  {
    std::ofstream large(folder_ / "large.txt", std::ios::binary);
    for (int i = 0; i < 160; ++i) large << block;
  }
  write_file(folder_ / "small.txt", "another");
  write_file(folder_ / "padded.txt", "padded");
  fs::resize_file(folder_ / "padded.txt", 100 << 20);  // with NUL bytes
  auto arguments = command("large.txt", "out", "30");
  arguments.insert(arguments.begin() + 4, {"small.txt", "padded.txt"});
  const auto result = shoal(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  if (!kSanitized) {
    EXPECT_LT(result.peak_bytes, 100e6);
  }
}

TEST_F(OpenWebTextCommand, SaysWhatItNeeds) {
  expect_user_error(shoal({"prepare", "openwebtext", "--out", "out"}), "--from");
  expect_user_error(
      shoal({"prepare", "openwebtext", "--from", "nowhere", "--tokenizer", "bytes", "--out", "out"}),
      "--tokenizer bytes", "`shoal prepare text`");
  expect_user_error(shoal({"prepare", "openwebtext", "--from", "nowhere", "--out", "out"}),
                    "nowhere: no such file");
  expect_user_error(shoal({"prepare", "shakespeare", "--from", "a", "b", "--out", "out"}),
                    "--from b: shakespeare takes one folder or URL");
  const auto help = shoal({"prepare", "--help"});
  EXPECT_THAT(help.out, HasSubstr("openwebtext.tar.xz, urlsf_subset*, .jsonl, .txt"));
  EXPECT_FALSE(fs::exists(folder_ / "out") || fs::exists(folder_ / "out.partial"));
}

}  // namespace
}  // namespace shoal::test
