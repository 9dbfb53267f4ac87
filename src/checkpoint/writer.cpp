#include "checkpoint/writer.h"

#include <algorithm>
#include <system_error>
#include <thread>

#include "core/clock.h"
#include "core/error.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPartial = ".partial", kReplaced = ".replaced", kRemoved = ".removed";
constexpr std::uint64_t kMaxRecord = 1u << 30;

// ROOT/step-00000200 -> ROOT/.step-00000200.SUFFIX
fs::path beside(const fs::path& target, std::string_view suffix) {
  return target.parent_path() / fmt::format(".{}{}", target.filename().string(), suffix);
}

fs::path shard_path(const fs::path& partial, int rank, int world) {
  return partial / shard_name(rank, world);
}
fs::path record_path(const fs::path& partial, int rank) {
  return partial / fmt::format("rank-{:05d}.json", rank);
}
fs::path failure_path(const fs::path& partial, int rank) {
  return partial / fmt::format("rank-{:05d}.failed", rank);
}

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail_user("cannot rename {} to {}: {}", from.string(), to.string(), error.message());
}

}  // namespace

std::string step_directory_name(std::int64_t step) { return fmt::format("step-{:08d}", step); }

CheckpointWriter::CheckpointWriter(fs::path root, std::int64_t step, const std::string& attempt)
    : root_(std::move(root)), target_(root_ / step_directory_name(step)) {
  partial_ = beside(target_, fmt::format(".{}{}", attempt, kPartial));
  std::error_code error;
  fs::create_directories(partial_, error);
  if (error) fail_user("cannot create {}: {}", partial_.string(), error.message());
}

void CheckpointWriter::write_shard(int rank, int world, std::span<const SliceView> views,
                                   const std::stop_token& stop) {
  put_record(rank, write_shard_file(shard_path(partial_, rank, world), views, stop));
}

void CheckpointWriter::copy_shard(int rank, int world, std::span<const TensorSlice> slices, SliceSource& from,
                                  const std::function<void(std::uint64_t)>& progress) {
  const auto write_data = [&](SafetensorsWriter& file) {
    std::vector<std::byte> data;
    std::uint64_t written = 0;
    for (TensorSlice slice : slices) {
      const std::int64_t end = slice.flat_end;
      do {
        slice.flat_end = std::min(end, slice.flat_begin + kPieceElements);
        data.resize(slice.bytes());
        from.read(slice, data);
        file.write_part(data);
        if (progress) progress(written += data.size());
        slice.flat_begin = slice.flat_end;
      } while (slice.flat_begin < end);  // once where it is empty
    }
  };
  put_record(rank, write_shard_file(shard_path(partial_, rank, world), slices, write_data));
}

void CheckpointWriter::take_shard(int rank, int world, const fs::path& folder, Manifest record) {
  put_record(rank, copy_shard_file(folder, std::move(record), shard_path(partial_, rank, world)));
}

// Renamed, so that rank 0 never sees half a record.
void CheckpointWriter::put_record(int rank, const Manifest& part) {
  const fs::path record = record_path(partial_, rank);
  const fs::path draft = fs::path(record) += ".draft";
  write_text(draft, to_json_text(part));
  move(draft, record);
}

void CheckpointWriter::report_failure(int rank, int world, const std::string& why) noexcept {
  std::error_code ignored;
  fs::remove(shard_path(partial_, rank, world), ignored);  // it may be what filled the disk
  if (rank == 0) {
    failure_of_first_ = why;
    return;
  }
  const fs::path failure = failure_path(partial_, rank);
  const fs::path draft = fs::path(failure) += ".draft";
  try {
    write_text(draft, why);
  } catch (...) {  // an empty file says enough
  }
  fs::rename(draft, failure, ignored);
}

Manifest CheckpointWriter::collect(int world, std::chrono::seconds patience,
                                   const std::stop_token& stop) const {
  Manifest whole;
  std::string fault;  // told when no rank writes any more, so that what they wrote can be removed
  const auto failed = [&](int rank, const std::string& why) {
    if (!fault.empty()) return;
    fault = fmt::format("rank {} could not save its shard{}", rank,
                        why.empty() ? ", and not write down why" : ": " + why);
  };
  const Stopwatch watch;
  if (failure_of_first_) failed(0, *failure_of_first_);
  for (int rank = failure_of_first_ ? 1 : 0; rank < world; ++rank) {
    const fs::path record = record_path(partial_, rank), failure = failure_path(partial_, rank);
    while (!fs::exists(record) && !fs::exists(failure)) {
      if (stop.stop_requested()) fail("rank {} did not save its shard", rank);
      std::error_code error;
      if (!fs::is_directory(partial_, error)) {
        fail_user("{} is gone: {}", partial_.string(), error ? error.message() : "not a directory");
      }
      if (watch.seconds() > static_cast<double>(patience.count())) {
        fail("rank {} did not save its shard within {} s", rank, patience.count());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (fs::exists(record)) {
      merge(whole, manifest_from_json_text(read_text(record, kMaxRecord), record));
    } else {
      failed(rank, read_text(failure, kMaxRecord));
    }
  }
  if (!fault.empty()) fail("{}", fault);
  return whole;
}

void CheckpointWriter::commit(const CheckpointInfo& info, int world, std::chrono::seconds patience,
                              const std::stop_token& stop) {
  Manifest manifest = collect(world, patience, stop);
  manifest.info = info;
  for (int rank = 0; rank < world; ++rank) fs::remove(record_path(partial_, rank));
  write_text(partial_ / kManifestName, to_json_text(manifest));
  sync_directory(partial_);

  const auto replaced = rename_partial();
  sync_directory(root_);
  std::error_code ignored;
  if (!replaced.empty()) fs::remove_all(replaced, ignored);
}

// Gives what was written its name. Returns where the checkpoint is that had it; "" where there was none.
fs::path CheckpointWriter::rename_partial() const {
  if (!fs::exists(target_)) {
    move(partial_, target_);
    return {};
  }
  if (swap_names(partial_, target_)) return partial_;
  auto replaced = beside(target_, kReplaced);
  move(target_, replaced);
  try {
    move(partial_, target_);
  } catch (const UserError&) {
    move(replaced, target_);
    throw;
  }
  return replaced;
}

void CheckpointWriter::abandon() noexcept {
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

void remove_leftovers(const fs::path& root) {
  std::vector<fs::path> hidden;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    if (entry.path().filename().string().starts_with(".")) hidden.push_back(entry.path());
  }
  for (const auto& path : hidden) {
    const fs::path target = root / path.stem().string().substr(1);
    if (path.extension() == kReplaced && !fs::exists(target)) {
      fs::rename(path, target, error);  // killed between the two renames: the old one is still good
    } else if (path.extension() == kPartial || path.extension() == kReplaced ||
               path.extension() == kRemoved) {
      fs::remove_all(path, error);
    }
  }
}

void remove_checkpoint(const fs::path& directory) {
  const fs::path removed = beside(directory, kRemoved);
  move(directory, removed);
  sync_directory(directory.parent_path());  // or after a power failure the name may be there, and files not
  std::error_code ignored;
  fs::remove_all(removed, ignored);
}

}  // namespace shoal
