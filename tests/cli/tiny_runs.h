// Shared by tests that train as a user does: a little synthetic data, a config, and functions to run it.
#pragma once

#include <chrono>
#include <functional>
#include <sstream>
#include <thread>

#include "cli/run.h"

namespace shoal::test {

inline constexpr const char* kTinyConfig = R"(
[data]
dir = "data"
[model]
n_layer = 2
n_head = 2
n_embd = 16
block_size = 16
dropout = 0.1
[train]
global_batch = 4
micro_batch = 2
steps = 20
threads = 1
[optim]
lr = 1e-2
[lr_schedule]
decay_steps = 1000
[eval]
interval = 10
batches = 2
[checkpoint]
interval = 10
keep = 100
[log]
tensorboard = false
peak_tflops = 0.1  # measuring it takes longer than the run
)";

inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// Like expect_user_error, for a command that has already logged, and whose error may have several lines.
template <typename... Words>
void expect_user_error_at_the_end(const Result& result, const Words&... words) {
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  const auto at = result.err.find("shoal: error: ");
  ASSERT_NE(at, std::string::npos) << result.err;
  const auto message = result.err.substr(at);
  for (const std::string& word : {std::string(words)...}) EXPECT_THAT(message, testing::HasSubstr(word));
}

class TinyRuns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new TempDir;
    ASSERT_EQ(run({"prepare", "synthetic", "--out", "data", "--size", "20000"}, shared_->path()).code, 0);
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }
  TinyRuns() {
    fs::copy(*shared_ / "data", folder_ / "data");
    write_file(folder_ / "tiny.toml", kTinyConfig);
  }

  using Settings = std::vector<std::string>;
  static Settings with(Settings settings, const Settings& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  static Settings train_command(const Settings& settings) {
    Settings arguments = {"train", "tiny.toml"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    return arguments;
  }
  Result shoal(const Settings& arguments) const { return run(arguments, folder_.path()); }
  Result train(const Settings& settings = {}) const { return shoal(train_command(settings)); }
  void train_well(const Settings& settings = {}) const {
    const auto result = train(settings);
    ASSERT_EQ(result.code, 0) << result.err;
  }

  fs::path file(const fs::path& name) const { return folder_ / name; }
  // All parameters and moments after the last step of a run, as bytes from the checkpoint.
  std::string final_state(const std::string& name) const {
    const auto bytes = read_file(file("runs") / name / "checkpoints/latest/shard-00000-of-00001.safetensors");
    EXPECT_FALSE(bytes.empty()) << name;
    return bytes;
  }
  // metrics.jsonl without the fields that depend on time, which come last in each line.
  std::string reproducible_metrics(const std::string& name) const {
    std::istringstream lines(read_file(file("runs") / name / "metrics.jsonl"));
    std::string result;
    for (std::string line; std::getline(lines, line);)
      result += line.substr(0, line.find(",\"tokens_per_s\"")) + "\n";
    return result;
  }
  // The same checkpoints and metrics, to the bit.
  void expect_same(const std::string& name, const std::string& other) const {
    const auto result = shoal({"checkpoint", "compare", "runs/" + name, "runs/" + other});
    EXPECT_EQ(result.code, 0) << name << " and " << other << result.out << result.err;
    EXPECT_EQ(reproducible_metrics(name), reproducible_metrics(other)) << name << " and " << other;
  }
  // All files under a folder with their contents, except the lock, which names its last holder.
  std::vector<std::string> contents(const fs::path& name) const {
    std::vector<std::string> result;
    for (const auto& entry : fs::recursive_directory_iterator(file(name))) {
      if (entry.is_regular_file() && entry.path().filename() != ".lock")
        result.push_back(entry.path().string() + "\n" + read_file(entry.path()));
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  static inline TempDir* shared_ = nullptr;
  TempDir folder_;
};

}  // namespace shoal::test
