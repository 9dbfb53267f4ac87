// Checkpoints in memory: a run that was killed goes on from the state in memory and ends with the bytes of an
// undisturbed run. Copies on other hosts are tested in tests/cli/memory_test.cpp and
// tests/deploy/hosts_test.sh.
#include "train/memory_checkpoints.h"

#include <fmt/ranges.h>

#include <chrono>
#include <fstream>
#include <latch>
#include <thread>

#include "checkpoint/file_size_limit.h"
#include "checkpoint/memory_folder.h"
#include "checkpoint/run_lock.h"
#include "core/clock.h"
#include "core/error.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;

TEST(Partner, IsARankOfTheNextHost) {
  const auto partners = [](const std::vector<std::uint64_t>& hosts) {
    std::vector<int> found;
    for (std::size_t r = 0; r < hosts.size(); ++r) found.push_back(partner_of(hosts, static_cast<int>(r)));
    return found;
  };
  using Ranks = std::vector<int>;
  EXPECT_EQ(partners({7}), Ranks{-1});
  EXPECT_EQ(partners({7, 7, 7}), (Ranks{-1, -1, -1}));
  EXPECT_EQ(partners({7, 7, 3, 3}), (Ranks{2, 3, 0, 1}));
  EXPECT_EQ(partners({7, 3, 5}), (Ranks{1, 2, 0}));
  EXPECT_EQ(partners({7, 3, 7, 3}), (Ranks{1, 0, 3, 2}));
  EXPECT_EQ(partners({7, 7, 7, 3}), (Ranks{3, 3, 3, 0}));
}

class MemoryRuns : public TinyRuns {
 protected:
  MemoryRuns() { fs::create_directory(memory()); }
  fs::path memory() const { return folder_ / "memory"; }
  Settings in_memory(const Settings& settings = {}) const {
    return with({"run.deterministic=layout", "train.global_batch=8", "train.micro_batch=1",
                 "checkpoint.memory=true", "checkpoint.memory_dir=" + memory().string()},
                settings);
  }
  // Trains until the last rank fails, before the step after `steps` steps, when all ranks have come so far
  // and the link `saved` is there, since a save goes on beside steps.
  void fail_after(int steps, const std::string& name, const Settings& settings, int ranks,
                  const fs::path& saved = {}) const {
    const auto given = config(name, settings);
    std::latch all_are_there(ranks);
    const auto train = [&](World& world) {
      int begun = 0;
      Trainer(given, world, nullptr, [&] {
        if (begun++ != steps) return;
        all_are_there.count_down();
        if (world.ranks.rank() != ranks - 1) return;
        all_are_there.wait();
        for (const Stopwatch watch; !saved.empty() && !fs::is_symlink(saved) && watch.seconds() < 10;)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        fail("the power is out");
      }).run();
    };
    EXPECT_THROW(run_threads({.ranks = ranks}, train), Error);
  }
  void expect_same(const std::string& name, const std::string& other) const {
    EXPECT_TRUE(tensors(name, 12) == tensors(other, 12));
    EXPECT_EQ(reproducible_metrics(name), reproducible_metrics(other));
  }
  bool has(const std::string& name, std::int64_t step) const { return fs::exists(checkpoint(name, step)); }
  // The files of a run in memory whose names end so.
  std::vector<fs::path> files(const std::string& ending) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(memory())) {
      if (entry.path().string().ends_with(ending)) found.push_back(entry.path());
    }
    std::ranges::sort(found);
    return found;
  }
  void flip_bit(const fs::path& path) const {
    auto text = read_file(path);
    text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 4);
    std::ofstream(path, std::ios::binary) << text;
  }
  // The shards in memory by their steps.
  std::map<std::int64_t, std::vector<fs::path>> shards(const std::string& name) const {
    const auto session = RunLock(run(name)).last_session();
    std::map<std::int64_t, std::vector<fs::path>> found;
    for (const auto& shard : MemoryFolder(memory(), run(name), session).shards()) {
      found[shard.record.info.step].push_back(shard.folder / shard.record.files.at(0).name);
    }
    return found;
  }
};

TEST_F(MemoryRuns, GoOnFromTheStepBeforeTheFailureInEveryLayout) {
  struct Layout {
    int ranks;
    Settings settings;
  };
  const std::vector<Layout> layouts = {
      {1, {}},
      {2, {"parallel.zero=0"}},
      {2, {"parallel.zero=1"}},
      {2, {"parallel.zero=2"}},
      {4, {"parallel.zero=3", "parallel.replicate=2"}},
      {4, {"parallel.pipeline=2", "parallel.zero=1"}},
      {2, {"parallel.tensor=2"}},
      {1, {"optim.name=accum_adamw", "optim.accum_steps=2"}},
      {2, {"train.spike_zscore=50", "train.dtype=bfloat16"}},
      {4, {"parallel.engine=gossip", "run.deterministic=off"}},
  };
  int number = 0;
  for (const auto& [ranks, settings] : layouts) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(settings, " ")));
    const auto all =
        with(in_memory({"checkpoint.interval=0", "checkpoint.best=false", "log.peak_tflops=1"}), settings);
    const auto name = fmt::format("run{}", number++);
    train(name + "-whole", with(all, {"checkpoint.memory=false"}), ranks);
    fail_after(7, name, all, ranks);
    EXPECT_FALSE(has(name, 7));
    train(name, with(all, {"init.from=auto"}), ranks);
    EXPECT_TRUE(has(name, 7));
    expect_same(name, name + "-whole");
    EXPECT_TRUE(fs::is_empty(memory()));
  }
}

TEST_F(MemoryRuns, GoOnOnAnyNumberOfRanks) {
  train("whole", in_memory({"checkpoint.memory=false"}));
  fail_after(2, "run", in_memory({"parallel.zero=3"}), 4);
  fail_after(3, "run", in_memory({"init.from=auto", "parallel.pipeline=2"}), 2);
  EXPECT_TRUE(has("run", 2));
  train("run", in_memory({"init.from=resume"}), 3);
  EXPECT_TRUE(has("run", 5));
  expect_same("run", "whole");
}

TEST_F(MemoryRuns, GoOnWithoutCheckpointsInMemoryFromThere) {
  train("whole", in_memory({"checkpoint.memory=false"}));
  fail_after(5, "run", in_memory(), 2);
  train("run", in_memory({"init.from=resume", "checkpoint.memory=false"}));
  EXPECT_TRUE(has("run", 5));
  expect_same("run", "whole");
  EXPECT_TRUE(fs::is_empty(memory()));
}

TEST_F(MemoryRuns, SaveAfterEveryIntervalOfSteps) {
  fail_after(8, "run", in_memory({"checkpoint.memory_interval=2", "checkpoint.interval=0"}), 2);
  const auto kept = shards("run");
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept.begin()->first, 6);
  EXPECT_EQ(kept.rbegin()->first, 8);
}

TEST_F(MemoryRuns, DamageIsNoticedAndTheNextOlderStateIsTaken) {
  train("whole", in_memory({"checkpoint.memory=false"}));
  const auto settings = in_memory({"checkpoint.interval=5"});
  fail_after(8, "run", settings, 2);
  flip_bit(shards("run").at(8).at(1));
  train("run", with(settings, {"init.from=resume"}), 2);
  EXPECT_FALSE(has("run", 8));
  EXPECT_TRUE(has("run", 7));
  EXPECT_TRUE(tensors("run", 12) == tensors("whole", 12));

  fail_after(8, "both", settings, 2);
  for (const auto& [step, files] : shards("both")) flip_bit(files.at(0));
  train("both", with(settings, {"init.from=resume"}), 2);
  EXPECT_FALSE(has("both", 8) || has("both", 7));
  EXPECT_TRUE(has("both", 5));
  EXPECT_TRUE(tensors("both", 12) == tensors("whole", 12));
}

TEST_F(MemoryRuns, AStateThatIsNotCompleteIsNotTaken) {
  const auto settings = in_memory({"checkpoint.interval=5"});
  fail_after(8, "run", settings, 2);
  fs::remove(files("rank-00001-of-00002.json").at(0));
  const auto left = shards("run");
  const auto whole = left.begin()->second.size() == 2 ? left.begin()->first : left.rbegin()->first;
  train("run", with(settings, {"init.from=resume"}), 2);
  EXPECT_TRUE(has("run", whole));
  EXPECT_FALSE(has("run", 15 - whole));  // of steps 7 and 8
}

// A start that does not see the state, and fails before it has begun, must not take the state's measurements.
TEST_F(MemoryRuns, AStateAndItsMeasurementsStayTogether) {
  const auto settings = in_memory({"checkpoint.interval=0", "checkpoint.best=false"});
  train("whole", settings, 2);
  fail_after(2, "run", settings, 2);
  fs::rename(memory(), folder_ / "away");
  fs::create_directory(memory());
  {
    const FileSizeLimit full(0);
    EXPECT_THAT(error_of([&] { train("run", with(settings, {"init.from=auto"}), 2); }), HasSubstr(".lock"));
  }
  fs::remove_all(memory());
  fs::rename(folder_ / "away", memory());
  train("run", with(settings, {"init.from=auto"}), 2);
  expect_same("run", "whole");
}

// The parameters that the first update spoiled are not what the run goes on from.
TEST_F(MemoryRuns, AStateThatTheRunFailedWithIsNotBroughtBack) {
  for (const int ranks : {1, 2}) {
    const auto name = fmt::format("run{}", ranks);
    const auto settings = in_memory({"checkpoint.best=false", "lr_schedule.warmup_steps=0"});
    EXPECT_THAT(error_of([&] { train(name, with(settings, {"optim.lr=1e39"}), ranks); }),
                HasSubstr("start the run again"));
    EXPECT_EQ(files(".safetensors"), std::vector<fs::path>());
    EXPECT_EQ(train(name, with(settings, {"init.from=auto", "train.steps=3"}), ranks).step, 3);
  }
}

TEST_F(MemoryRuns, AnOlderStateThanTheDisksIsLeftAlone) {
  const auto settings = in_memory({"checkpoint.memory_interval=5"});
  fail_after(9, "run", settings, 2);  // 5 in memory, 6 on the disk
  ASSERT_TRUE(has("run", 6));
  train("run", with(settings, {"init.from=resume"}), 2);
  EXPECT_FALSE(has("run", 5));
}

// The process died, or the disk was full, between a checkpoint's name and the link to it.
TEST_F(MemoryRuns, AreTakenWhereTheDiskHasTheStateWithoutALink) {
  const auto settings = in_memory({"checkpoint.interval=6", "checkpoint.best=false"});
  train("whole", with(in_memory({"checkpoint.interval=4"}), {"checkpoint.memory=false"}));
  fail_after(8, "run", settings, 2);
  fs::copy(checkpoint("whole", 8), checkpoint("run", 8));
  train("run", with(settings, {"init.from=resume"}), 2);
  EXPECT_THAT(log_of("run"), HasSubstr("step-00000008: 8 of 12 steps"));
}

// The process died before the best was on the disk.
TEST_F(MemoryRuns, AStateThatWasTheBestStillIs) {
  const auto settings = in_memory({"checkpoint.interval=4", "eval.interval=8", "eval.at_start=false"});
  const auto checkpoints = checkpoint("run", 8).parent_path();
  fail_after(8, "run", settings, 2, checkpoints / "best");
  ASSERT_EQ(fs::read_symlink(checkpoints / "best"), checkpoint("run", 8).filename());
  fs::remove_all(checkpoint("run", 8));
  fs::remove(checkpoints / "best");
  fail_after(1, "run", with(settings, {"init.from=resume"}), 2, checkpoints / "best");
  EXPECT_EQ(fs::read_symlink(checkpoints / "best"), checkpoint("run", 8).filename());
}

TEST_F(MemoryRuns, AnotherRunFromScratchRemovesThem) {
  fail_after(4, "run", in_memory({"checkpoint.interval=0"}), 2);
  EXPECT_FALSE(files(".safetensors").empty());
  fs::remove_all(run("run"));
  train("run", in_memory());
  EXPECT_TRUE(fs::is_empty(memory()));
  EXPECT_FALSE(has("run", 4));
}

TEST_F(MemoryRuns, NeedAFolderForThem) {
  const auto refused = [&](const Settings& settings) {
    try {
      train("run", in_memory(settings), 2);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused({"checkpoint.memory_dir=" + (folder_ / "none").string()}),
              HasSubstr("checkpoint.memory_dir"));
  EXPECT_THAT(refused({"checkpoint.memory_dir="}), HasSubstr("/dev/shm"));
  EXPECT_THAT(refused({"parallel.offload=disk", "train.backend=cuda"}), HasSubstr("checkpoint.memory"));
}

}  // namespace
}  // namespace shoal::test
