// The checkpoints of a run: RUN/checkpoints/step-00000200/ ..., with the links `latest` and `best` beside
// them. Each is whole or absent, whenever the process or the machine stops.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/writer.h"

namespace shoal {

inline constexpr const char* kCheckpointsName = "checkpoints";
inline constexpr const char* kLatestName = "latest";
inline constexpr const char* kBestName = "best";

void copy_host_memory(void* to, const void* from, std::size_t bytes);

// Memory for copies of slices, allocated once and used again.
class SliceBuffer {
 public:
  using Copy = std::function<void(void* to, const void* from, std::size_t bytes)>;
  // Copies the data of the slices, which then point to the copies.
  void take(std::vector<SliceView>& slices, const Copy& copy);

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
};

struct StoreOptions {
  int keep = 0;  // how many of the newest stay, besides the latest and the best; 0 keeps all
  int rank = 0;  // rank 0 tidies, commits, links and prunes, so it opens the store before the others do
  int world = 1;
  // Copies data for a save in the background; none: it reads them where they are, so they must not change.
  SliceBuffer::Copy copy = copy_host_memory;
  // Called before the files of the run's folder are made durable, by the thread that saves.
  std::function<void()> before_sync = [] {};
  std::string session = "0";  // the same on all ranks, another for every process that saves to this run
};

class CheckpointStore {
 public:
  // Creates RUN/checkpoints and removes what a killed process left there. Throws UserError when it cannot.
  explicit CheckpointStore(const std::filesystem::path& run, StoreOptions options = {});
  ~CheckpointStore();  // waits for a save in the background
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  // Every rank saves at the same steps. Ranks need not wait for each other, but rank 0's save ends after all
  // others'.

  // Writes a checkpoint of this rank's slices; when it returns on rank 0, the checkpoint is on the disk, with
  // what the files of the run's folder held when it was begun, and `latest` names it (and `best`, if it is).
  // Throws UserError when it cannot be written, with the bytes needed and free; what was there before is
  // untouched then.
  void save(const CheckpointInfo& info, std::span<const SliceView> slices, bool best = false);

  // The same in the background, from a copy of the data: the caller's may change when this returns. The
  // copy's memory is kept for the next time. Waits for an earlier save that is still going on.
  void save_async(const CheckpointInfo& info, std::span<const SliceView> slices, bool best = false);
  void wait();
  bool wait_for(std::chrono::milliseconds time);  // whether it is over by then
  // Whatever a save in the background still waits for will not come: it fails soon.
  void give_up() { stop_.request_stop(); }

  // Why the last background save failed, once; nothing while it goes on or when it went well.
  std::optional<std::string> take_error();

  std::optional<std::filesystem::path> latest() const;
  // The checkpoint that `best` names; where some copy of the run has lost the link, the newest that is
  // marked.
  std::optional<std::filesystem::path> best() const;
  void name_best(const std::filesystem::path& checkpoint);
  std::vector<std::filesystem::path> list() const;  // oldest step first
  const std::filesystem::path& root() const { return root_; }

 private:
  void write(const CheckpointInfo& info, std::span<const SliceView> slices, bool best,
             const std::stop_token& stop);
  void write_own_shard(CheckpointWriter& writer, std::span<const SliceView> slices, std::uint64_t needed,
                       const std::stop_token& stop);
  void name(const char* link, const std::filesystem::path& checkpoint);
  void prune();

  std::filesystem::path root_;
  StoreOptions options_;
  SliceBuffer buffer_;
  std::int64_t attempts_ = 0;
  bool no_links_told_ = false;
  std::stop_source stop_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool running_ = false;  // guarded by mutex_, as is
  std::optional<std::string> error_;
};

// The checkpoints of a directory, oldest step first; none when it does not exist.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& root);
// Whether a checkpoint's state says that it was the best when it was saved.
bool is_marked_best(const std::filesystem::path& checkpoint);
// The step in a checkpoint's name.
std::int64_t step_of(const std::filesystem::path& checkpoint);
// The checkpoint that `latest` names there, or else that of the highest step.
std::optional<std::filesystem::path> latest_in(const std::filesystem::path& root);

}  // namespace shoal
