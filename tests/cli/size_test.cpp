// shoal size, against the known sizes of GPT-2 and against what runs take.
#include <cmath>
#include <sstream>

#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;

constexpr const char* kConfig = R"(
[data]
dir = "data"
[train]
steps = 2
threads = 2
[eval]
interval = 2
batches = 1
at_start = false
)";

// The bytes that stand after the last "  NAME   123.4 MiB".
double bytes_of(const std::string& output, const std::string& name) {
  double bytes = std::nan("");
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  " + name + "  ")) continue;
    std::istringstream rest(line.substr(2 + name.size()));
    double value = 0;
    std::string unit;
    rest >> value >> unit;
    if (unit == "KiB") bytes = value * 1024;
    if (unit == "MiB") bytes = value * 1024 * 1024;
    if (unit == "GiB") bytes = value * 1024 * 1024 * 1024;
  }
  return bytes;
}

// GPT-2's count is 124,439,808 by its published shapes; its data need not be there.
TEST(Size, CountsGpt2WithoutItsData) {
  TempDir folder;
  write_file(folder / "gpt2.toml", kConfig);
  const auto result = run({"size", "gpt2.toml", "model.preset=gpt2"}, folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("vocabulary 50,257 (GPT-2's: there is no data yet"));
  EXPECT_THAT(result.out, HasSubstr("124,439,808"));
  EXPECT_THAT(result.out, HasSubstr("7,087,872 each"));
  // 6 N + 12 L C T = 6 * 124,439,808 + 12 * 12 * 768 * 1024
  EXPECT_THAT(result.out, HasSubstr("859.9 MFLOP"));
  EXPECT_THAT(result.out, HasSubstr("10.6 TFLOP"));  // of 12 x 1024 tokens
}

TEST(Size, TakesAGivenVocabulary) {
  TempDir folder;
  write_file(folder / "a.toml", kConfig);
  const auto result = run({"size", "a.toml", "model.vocab_size=100"}, folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("vocabulary 100 (model.vocab_size)"));
  expect_user_error(run({"size", "a.toml", "model.vocab_siz=100"}, folder.path()), "model.vocab_size");
  expect_user_error(run({"size", "absent.toml"}, folder.path()), "absent.toml");
}

TEST(Size, IsWhatARunTakes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  TempDir folder;
  write_file(folder / "run.toml", kConfig);
  ASSERT_EQ(run({"prepare", "synthetic", "--size", "20000", "--out", "data"}, folder.path()).code, 0);
  // Where activations are the most, and where logits, moments and the checkpoint are.
  const std::vector<std::vector<std::string>> cases = {
      {"run.name=activations", "model.n_layer=4", "model.n_head=4", "model.n_embd=128",
       "model.block_size=256", "train.global_batch=12"},
      {"run.name=vocabulary", "model.n_layer=2", "model.n_head=4", "model.n_embd=128", "model.block_size=64",
       "model.vocab_size=20000", "train.global_batch=8", "train.micro_batch=4", "train.dtype=bfloat16",
       "train.recompute=block"},
  };
  for (auto settings : cases) {
    SCOPED_TRACE(settings.front());
    settings.insert(settings.begin(), {"size", "run.toml"});
    const auto size = run(settings, folder.path());
    settings.front() = "train";
    const auto trained = run(settings, folder.path());
    ASSERT_EQ(trained.code, 0) << trained.err;
    const double said = bytes_of(size.out, "total");
    EXPECT_GT(said, 100e6) << size.out;  // so that what the system adds does not matter
    EXPECT_NEAR(trained.peak_bytes / said, 1, 0.1) << size.out;

    std::uintmax_t written = 0;
    const auto checkpoint = folder.path() / "runs" / settings[2].substr(9) / "checkpoints" / "step-00000002";
    for (const auto& file : fs::directory_iterator(checkpoint)) {
      if (file.path().extension() == ".safetensors") written += file.file_size();
    }
    // "checkpoint" stands for the file first, then for the copy in memory, which is larger.
    const auto files = size.out.substr(0, size.out.find("memory of training"));
    EXPECT_NEAR(static_cast<double>(written) / bytes_of(files, "checkpoint"), 1, 0.01);
  }
}

}  // namespace
}  // namespace shoal::test
