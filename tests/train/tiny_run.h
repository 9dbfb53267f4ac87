// Shared by tests of whole runs: tiny models on a little synthetic data, in folders of their own.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "comm/world.h"
#include "core/log.h"
#include "data/prepare.h"
#include "data/temp_folder.h"
#include "report/metrics.h"
#include "train/trainer.h"

namespace shoal::test {

namespace fs = std::filesystem;
using Settings = std::vector<std::string>;

// Trains on ranks in threads; returns the result of rank 0.
inline TrainResult run_trainer(const Config& config, int ranks = 1) {
  TrainResult result;
  run_threads({.ranks = ranks}, [&](World& world) {
    const auto found = Trainer(config, world).run();
    if (world.ranks.rank() == 0) result = found;
  });
  return result;
}

// A folder with a dataset, `data`, and runs.
class TinyRuns : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    log::set_level(log::Level::error);
    data_ = new TempFolder;
    PrepareOptions options;
    options.dataset = "synthetic";
    options.out = *data_ / "data";
    options.threads = 1;
    options.size = 20'000;
    prepare(options);
  }
  static void TearDownTestSuite() {
    delete data_;
    data_ = nullptr;
  }

  // Six sequences a step in three micro-batches, 12 steps; evaluated and saved often.
  Config config(const std::string& name, const Settings& settings = {}) const {
    Config config;
    config.run.dir = folder_.path().string();
    config.run.name = name;
    config.data.dir = (*data_ / "data").string();
    config.model.n_layer = 2;
    config.model.n_head = 2;
    config.model.n_embd = 16;
    config.model.block_size = 8;
    config.train.global_batch = 6;
    config.train.micro_batch = 2;
    config.train.steps = 12;
    config.train.threads = 1;
    config.optim.lr = 1e-2;
    config.lr_schedule.warmup_steps = 2;
    config.lr_schedule.decay_steps = 12;
    config.eval = {.interval = 3, .sequences = 4, .at_start = true};
    config.checkpoint = {.interval = 3, .keep = 100, .best = true};
    // Measuring the peak takes longer than the run.
    config.log = {.interval = 1, .tensorboard = false, .jsonl = true, .peak_tflops = 0.1};
    apply_arguments(config, settings);
    return config;
  }
  TrainResult train(const std::string& name, const Settings& settings = {}, int ranks = 1) const {
    return run_trainer(config(name, settings), ranks);
  }

  fs::path run(const std::string& name) const { return folder_ / name; }
  fs::path checkpoint(const std::string& name, std::int64_t step) const {
    return run(name) / kCheckpointsName / step_directory_name(step);
  }
  // All parameters and moments after a step, as bytes from the checkpoint.
  std::string state(const std::string& name, std::int64_t step) const {
    const auto bytes = read_file(checkpoint(name, step) / "shard-00000-of-00001.safetensors");
    EXPECT_FALSE(bytes.empty()) << name << " has no checkpoint of step " << step;
    return bytes;
  }
  static Settings with(Settings settings, const Settings& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  // All tensors after a step, assembled from the shards of any ranks.
  std::map<std::string, std::vector<std::byte>> tensors(const std::string& name, std::int64_t step) const {
    CheckpointReader reader(checkpoint(name, step));
    std::map<std::string, std::vector<std::byte>> result;
    for (const auto& tensor : reader.manifest().tensors) {
      auto& bytes = result[tensor.name];
      bytes.resize(tensor.bytes());
      reader.read(whole_slice(tensor.name, tensor.dtype, tensor.shape), bytes);
    }
    return result;
  }
  Metrics metrics(const std::string& name) const { return read_metrics(run(name) / "metrics.jsonl"); }
  // metrics.jsonl without the fields that depend on time, which come last in each line.
  std::string reproducible_metrics(const std::string& name) const {
    std::istringstream lines(read_file(run(name) / "metrics.jsonl"));
    std::string result;
    for (std::string line; std::getline(lines, line);)
      result += line.substr(0, line.find(",\"tokens_per_s\"")) + "\n";
    return result;
  }
  std::string log_of(const std::string& name) const { return read_file(run(name) / "train.log"); }

  static inline TempFolder* data_ = nullptr;
  TempFolder folder_;
};

// The message of the Error that `action` throws; "" and a test failure when it throws none.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an Error";
  return {};
}

}  // namespace shoal::test
