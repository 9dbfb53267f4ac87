// The order in which a checkpoint is written to disk. A power failure may lose all data that is not synced: a
// file must be synced before its folder, the folder before it gets its final name, and that name before
// `latest` points to it. No crash that a test can cause shows a mistake here, so the test records the calls
// themselves.
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/store.h"

namespace shoal::test {
namespace {

// Records the calls on files in a folder while it exists: "write a/b", "sync a/b", "rename a to b". Repeated
// calls are recorded once. The folder itself is ".".
class DiskRecorder {
 public:
  explicit DiskRecorder(fs::path folder) : folder_(fs::canonical(folder)) {
    const std::lock_guard lock(mutex());
    active() = this;
  }
  ~DiskRecorder() {
    const std::lock_guard lock(mutex());
    active() = nullptr;
  }
  const std::vector<std::string>& calls() const { return calls_; }

  static void note(const char* what, int file) {
    std::error_code error;
    const auto path = fs::read_symlink(fmt::format("/proc/self/fd/{}", file), error);
    if (!error) note([&](const auto& relative) { return fmt::format("{} {}", what, relative(path)); });
  }
  static void note_rename(const fs::path& from, const fs::path& to) {
    note([&](const auto& relative) { return fmt::format("rename {} to {}", relative(from), relative(to)); });
  }
  static void note_swap(const fs::path& one, const fs::path& other) {
    note([&](const auto& relative) { return fmt::format("swap {} and {}", relative(one), relative(other)); });
  }

 private:
  template <typename Text>
  static void note(const Text& text) {
    const std::lock_guard lock(mutex());
    if (!active()) return;
    const auto relative = [&](const fs::path& path) {
      return path.lexically_relative(active()->folder_).string();
    };
    const std::string call = text(relative);
    auto& calls = active()->calls_;
    if (call.find("..") == std::string::npos && (calls.empty() || calls.back() != call))
      calls.push_back(call);
  }
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static DiskRecorder*& active() {
    static DiskRecorder* active = nullptr;
    return active;
  }

  fs::path folder_;
  std::vector<std::string> calls_;
};

}  // namespace
}  // namespace shoal::test

// Replace the functions of the C library, also for std::filesystem.
extern "C" ssize_t write(int file, const void* data, size_t bytes) {
  shoal::test::DiskRecorder::note("write", file);
  return ::syscall(SYS_write, file, data, bytes);
}
extern "C" int fsync(int file) {
  shoal::test::DiskRecorder::note("sync", file);
  return static_cast<int>(::syscall(SYS_fsync, file));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  shoal::test::DiskRecorder::note_rename(from, to);
  return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}
extern "C" int renameat2(int one_folder, const char* one, int other_folder, const char* other,
                         unsigned flags) noexcept {
  shoal::test::DiskRecorder::note_swap(one, other);
  return static_cast<int>(::syscall(SYS_renameat2, one_folder, one, other_folder, other, flags));
}

namespace shoal::test {
namespace {

using ::testing::ElementsAreArray;

const std::string kPart = ".step-00000007.try.partial", kWhole = "step-00000007";

std::vector<std::string> shard_calls(int rank) {
  const auto shard = fmt::format("{}/shard-{:05d}-of-00002.safetensors", kPart, rank),
             record = fmt::format("{}/rank-{:05d}.json", kPart, rank);
  return {"write " + shard, "sync " + shard, "write " + record + ".draft", "sync " + record + ".draft",
          fmt::format("rename {}.draft to {}", record, record)};
}

class Durability : public ::testing::Test {
 protected:
  CheckpointWriter write_shards() const {
    CheckpointWriter writer(run_.path(), 7, "try");
    writer.write_shard(0, 2, std::vector{a_.view()}, {});
    writer.write_shard(1, 2, std::vector{b_.view()}, {});
    return writer;
  }
  static CheckpointInfo info() {
    return {7, "0.1.0", "", nlohmann::json::object(), nlohmann::json::object()};
  }

  const ScratchDir run_;
  const TestTensor a_{"a", DType::f32, {100}, 1}, b_{"b", DType::f32, {2'000'000}, 2};
};

TEST_F(Durability, AShardIsOnTheDiskBeforeItIsReported) {
  const DiskRecorder recorder(run_.path());
  write_shards();
  auto expected = shard_calls(0);
  std::ranges::copy(shard_calls(1), std::back_inserter(expected));
  EXPECT_THAT(recorder.calls(), ElementsAreArray(expected));
}

TEST_F(Durability, AFolderIsOnTheDiskBeforeItGetsItsName) {
  auto writer = write_shards();
  const DiskRecorder recorder(run_.path());
  writer.commit(info(), 2, std::chrono::seconds(1), {});
  EXPECT_THAT(recorder.calls(),
              ElementsAreArray({"write " + kPart + "/manifest.json", "sync " + kPart + "/manifest.json",
                                "sync " + kPart, fmt::format("rename {} to {}", kPart, kWhole),
                                std::string("sync .")}));
}

TEST_F(Durability, TheOldFolderStaysUntilTheNewOneIsOnTheDisk) {
  write_shards().commit(info(), 2, std::chrono::seconds(1), {});
  auto writer = write_shards();
  const DiskRecorder recorder(run_.path());
  writer.commit(info(), 2, std::chrono::seconds(1), {});
  EXPECT_THAT(recorder.calls(),
              ElementsAreArray({"write " + kPart + "/manifest.json", "sync " + kPart + "/manifest.json",
                                "sync " + kPart, fmt::format("swap {} and {}", kPart, kWhole),
                                std::string("sync .")}));
  EXPECT_FALSE(fs::exists(run_ / kPart));
}

TEST_F(Durability, ACheckpointThatIsRemovedLosesItsNameOnTheDiskFirst) {
  write_shards().commit(info(), 2, std::chrono::seconds(1), {});
  const DiskRecorder recorder(run_.path());
  remove_checkpoint(run_ / kWhole);
  EXPECT_THAT(recorder.calls(),
              ::testing::ElementsAre(fmt::format("rename {} to .{}.removed", kWhole, kWhole), "sync ."));
  EXPECT_TRUE(fs::is_empty(run_.path()));
}

TEST_F(Durability, TheFoldersOfANewRunAreOnTheDisk) {
  const DiskRecorder recorder(run_.path());
  const CheckpointStore store(run_ / "runs/one");
  EXPECT_THAT(recorder.calls(), ::testing::ElementsAre("sync runs/one", "sync runs", "sync ."));
}

TEST_F(Durability, LatestPointsAtWhatIsOnTheDisk) {
  CheckpointStore store(run_.path());
  const DiskRecorder recorder(store.root());
  store.save(info(), std::vector{a_.view()});
  const auto& calls = recorder.calls();
  ASSERT_GE(calls.size(), 4u);
  EXPECT_THAT(std::vector(calls.end() - 4, calls.end()),
              ::testing::ElementsAre(::testing::EndsWith(" to " + kWhole), "sync .",
                                     "rename .latest.partial to latest", "sync ."));
}

}  // namespace
}  // namespace shoal::test
