#include "checkpoint/memory_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "core/error.h"
#include "core/hash.h"
#include "core/host.h"
#include "core/text.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxMemoryRecord = 1u << 30;

std::string record_name(int rank, int world) {
  return fmt::format("rank-{:05d}-of-{:05d}.json", rank, world);
}

// Not a link: other users may write to the folder it is in.
bool is_own_folder(const fs::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid();
}

void make_private_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    fail_user("cannot create {}: {}; set checkpoint.memory_dir to a folder on a memory file system",
              path.string(), std::generic_category().message(errno));
  }
  if (is_own_folder(path)) return;
  fail_user("{} is not a folder of this user; remove it, or set checkpoint.memory_dir to another folder",
            path.string());
}

}  // namespace

MemoryFolder::MemoryFolder(const fs::path& base, const fs::path& run, const std::string& session)
    : base_(base / fmt::format("shoal-{:016x}", fnv1a(fs::weakly_canonical(run).string()))),
      path_(base_ / host_name()),
      session_(path_ / session) {}

void MemoryFolder::create() const {
  make_private_folder(base_);
  make_private_folder(path_);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) fs::remove_all(entry.path(), error);
  for (int slot = 0; slot < kMemoryStates; ++slot) fs::create_directories(slot_path(slot), error);
  if (error) fail_user("cannot create {}: {}", session_.string(), error.message());
}

void MemoryFolder::remove() const noexcept {
  std::error_code ignored;
  if (!is_own_folder(base_)) return;
  fs::remove_all(path_, ignored);
  fs::remove(base_, ignored);  // unless another host has files there
}

std::uint64_t MemoryFolder::bytes() const {
  std::uint64_t sum = 0;
  std::error_code absent;
  for (const auto& entry : fs::recursive_directory_iterator(path_, absent)) {
    if (entry.is_regular_file(absent)) sum += entry.file_size(absent);
  }
  return sum;
}

fs::path MemoryFolder::slot_path(int slot) const { return session_ / fmt::format("slot-{}", slot); }

fs::path MemoryFolder::file(int slot, int rank, int world) const {
  return slot_path(slot) / shard_name(rank, world);
}

void MemoryFolder::reserve(int rank, int world, std::uint64_t bytes) const {
  for (int slot = 0; slot < kMemoryStates; ++slot) {
    const auto path = file(slot, rank, world);
    const auto descriptor = open_file(path, O_WRONLY | O_CREAT, "create");
    const int error = ::posix_fallocate(descriptor.get(), 0, static_cast<off_t>(bytes));
    if (error != 0)
      fail_user("cannot reserve {} for {}: {}", format_bytes(static_cast<double>(bytes)), path.string(),
                std::generic_category().message(error));
  }
}

std::vector<MemoryShard> MemoryFolder::shards() const {
  std::vector<MemoryShard> found;
  std::error_code absent;
  if (!is_own_folder(base_) || !is_own_folder(path_)) return found;
  for (int slot = 0; slot < kMemoryStates; ++slot) {
    for (const auto& entry : fs::directory_iterator(slot_path(slot), absent)) {
      MemoryShard shard;
      shard.folder = slot_path(slot);
      const auto name = entry.path().filename().string();
      if (std::sscanf(name.c_str(), "rank-%d-of-%d.json", &shard.rank, &shard.world) != 2 ||
          name != record_name(shard.rank, shard.world)) {
        continue;
      }
      try {
        shard.record = manifest_from_json_text(read_text(entry.path(), kMaxMemoryRecord), entry.path());
        found.push_back(std::move(shard));
      } catch (const UserError&) {  // damaged
      }
    }
  }
  return found;
}

fs::path MemoryFolder::begin(int slot, int rank, int world) const {
  const auto record = slot_path(slot) / record_name(rank, world);
  if (::unlink(record.c_str()) != 0 && errno != ENOENT) {
    fail("cannot remove {}: {}", record.string(), std::generic_category().message(errno));
  }
  return file(slot, rank, world);
}

void MemoryFolder::end(int slot, int rank, int world, const Manifest& record) const {
  replace_text(slot_path(slot) / record_name(rank, world), to_json_text(record));
}

}  // namespace shoal
