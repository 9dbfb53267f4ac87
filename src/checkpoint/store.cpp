#include "checkpoint/store.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/process_limits.h"
#include "core/text.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

std::optional<fs::path> follow(const fs::path& root, const char* link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(root / link, error);
  if (error || !fs::is_directory(root / target, error)) return std::nullopt;
  return root / target;
}

std::uint64_t free_bytes(const fs::path& directory) {
  std::error_code error;
  const auto space = fs::space(directory, error);
  return error ? UINT64_MAX : space.available;
}

constexpr std::chrono::minutes kPatience(30);  // with a rank that is slower than the first

std::string size_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

void copy_host_memory(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

bool is_marked_best(const fs::path& checkpoint) {
  try {
    return read_manifest(checkpoint).info.state.value(kBestName, false);
  } catch (const std::exception&) {  // damaged: reading it says so
    return false;
  }
}

std::int64_t step_of(const fs::path& checkpoint) {
  const auto name = checkpoint.filename().string();
  const std::string_view prefix = "step-";
  return name.starts_with(prefix) ? std::strtoll(name.c_str() + prefix.size(), nullptr, 10) : 0;
}

std::vector<fs::path> list_checkpoints(const fs::path& root) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    // Other names, such as "step-00000200-good", are the user's.
    if (name != step_directory_name(step_of(entry.path())) || !fs::is_directory(entry.path(), error))
      continue;
    found.emplace_back(step_of(entry.path()), entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

std::optional<fs::path> latest_in(const fs::path& root) {
  if (auto latest = follow(root, kLatestName)) return latest;
  const auto all = list_checkpoints(root);
  return all.empty() ? std::nullopt : std::optional(all.back());
}

CheckpointStore::CheckpointStore(const fs::path& run, StoreOptions options)
    : root_(run / kCheckpointsName), options_(std::move(options)) {
  std::error_code error;
  fs::create_directories(root_, error);
  if (error) fail_user("cannot create {}: {}", root_.string(), error.message());
  if (options_.rank != 0) return;
  remove_leftovers(root_);
  sync_path_to(root_);  // which may be new
}

CheckpointStore::~CheckpointStore() { wait(); }

void CheckpointStore::wait() {
  if (thread_.joinable()) thread_.join();
}

bool CheckpointStore::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, time, [&] { return !running_; });
}

std::optional<std::string> CheckpointStore::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, std::nullopt);
}

std::optional<fs::path> CheckpointStore::latest() const { return latest_in(root_); }

std::optional<fs::path> CheckpointStore::best() const {
  if (auto best = follow(root_, kBestName)) return best;
  auto all = list();
  while (!all.empty() && !is_marked_best(all.back())) all.pop_back();
  return all.empty() ? std::nullopt : std::optional(all.back());
}

void CheckpointStore::name_best(const fs::path& checkpoint) { name(kBestName, checkpoint); }

void CheckpointStore::name(const char* link, const fs::path& checkpoint) {
  const auto path = root_ / link;
  if (std::error_code error; fs::is_directory(fs::symlink_status(path, error))) {
    const auto aside = root_ / fmt::format("copy-of-{}", link);
    fs::rename(path, aside, error);
    if (!error) {
      log::warn("{} is a folder, as some programs copy links; it is now {}, which the run does not need",
                path.string(), aside.string());
    }
  }
  if (replace_symlink(path, checkpoint.filename().string()) || std::exchange(no_links_told_, true)) return;
  log::warn(
      "the file system of {} cannot hold links: the latest checkpoint is that of the highest step, the best "
      "one the last with \"best\": true in its {}",
      root_.string(), kManifestName);
}

std::vector<fs::path> CheckpointStore::list() const { return list_checkpoints(root_); }

void CheckpointStore::save(const CheckpointInfo& info, std::span<const SliceView> slices, bool best) {
  wait();
  write(info, slices, best, {});
}

void SliceBuffer::take(std::vector<SliceView>& slices, const Copy& copy) {
  std::size_t bytes = 0;
  for (const auto& view : slices) bytes += view.data.size();
  if (bytes_ < bytes) {
    memory_.reset();
    bytes_ = 0;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    bytes_ = bytes;
  }
  std::byte* next = memory_.get();
  for (auto& slice : slices) {
    if (!slice.data.empty()) copy(next, slice.data.data(), slice.data.size());
    slice.data = {next, slice.data.size()};
    next += slice.data.size();
  }
}

void CheckpointStore::save_async(const CheckpointInfo& info, std::span<const SliceView> slices, bool best) {
  wait();
  std::vector<SliceView> copies(slices.begin(), slices.end());
  if (options_.copy) buffer_.take(copies, options_.copy);
  stop_ = {};
  running_ = true;
  thread_ = std::thread([this, info, copies = std::move(copies), best, stop = stop_.get_token()] {
    std::optional<std::string> failure;
    try {
      write(info, copies, best, stop);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    const std::lock_guard lock(mutex_);
    if (failure) error_ = std::move(failure);
    running_ = false;
    ended_.notify_all();
  });
}

// This rank's shard. A failure is reported to rank 0, which then meets it in commit, with what others report.
void CheckpointStore::write_own_shard(CheckpointWriter& writer, std::span<const SliceView> slices,
                                      std::uint64_t needed, const std::stop_token& stop) {
  try {
    if (free_bytes(root_) < needed) fail_user("there is not enough free space");
    writer.write_shard(options_.rank, options_.world, slices, stop);
  } catch (const std::exception& error) {
    if (options_.world == 1) throw;
    writer.report_failure(options_.rank, options_.world, message_of(error));
    if (options_.rank != 0) throw;
  }
}

void CheckpointStore::write(const CheckpointInfo& info, std::span<const SliceView> slices, bool best,
                            const std::stop_token& stop) {
  const std::uint64_t needed = shard_bytes(slices);
  std::optional<CheckpointWriter> writer;
  const auto give_up = [&](const std::string& why) {
    if (writer && options_.rank == 0) writer->abandon();
    const auto previous = latest();
    return fmt::format("the checkpoint of step {} was not saved in {}: {} ({} needed, {} free). {}",
                       info.step, root_.string(), why, size_text(needed), size_text(free_bytes(root_)),
                       previous ? fmt::format("The last one, {}, is untouched", previous->filename().string())
                                : "There is no earlier one");
  };
  try {
    writer.emplace(root_, info.step, fmt::format("{}-{}", options_.session, ++attempts_));
    write_own_shard(*writer, slices, needed, stop);
    if (options_.rank != 0) return;
    options_.before_sync();
    sync_files_in(root_.parent_path());
    writer->commit(info, options_.world, kPatience, stop);
  } catch (const UserError& error) {
    throw UserError(give_up(error.what()));
  } catch (const std::exception& error) {
    throw Error(give_up(message_of(error)));
  }
  name(kLatestName, writer->target());
  if (best) name_best(writer->target());
  prune();
}

void CheckpointStore::prune() {
  if (options_.keep <= 0) return;
  const auto all = list();
  if (all.size() <= static_cast<std::size_t>(options_.keep)) return;
  const auto best = this->best();
  for (const auto& directory : std::span(all).first(all.size() - static_cast<std::size_t>(options_.keep))) {
    if (directory != latest() && directory != best) remove_checkpoint(directory);
  }
}

}  // namespace shoal
