// The newest states of a run in the memory of a host: shards of ranks, as files of a memory file system
// (tmpfs). They survive the processes, but not the host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/shard.h"

namespace shoal {

// A folder has two states, in slots 0 and 1: while one is overwritten, the other one is complete.
inline constexpr int kMemoryStates = 2;

// A complete shard.
struct MemoryShard {
  int rank = 0, world = 1;
  std::filesystem::path folder;
  Manifest record;  // of its file, with the metadata of the whole state
};

class MemoryFolder {
 public:
  // BASE/shoal-HASH/HOST/SESSION, with a hash of the run's path; it need not exist. `session`: the name of
  // the start that saves there (checkpoint/run_lock.h).
  MemoryFolder(const std::filesystem::path& base, const std::filesystem::path& run,
               const std::string& session);

  const std::filesystem::path& path() const { return path_; }  // of all sessions on this host

  // Creates the folder, accessible to this user only, and removes the files of other sessions on this host.
  // Throws UserError when it cannot be created, or belongs to another user.
  void create() const;
  // Allocates space for the shards of a rank in both slots. Throws UserError where there is not enough.
  void reserve(int rank, int world, std::uint64_t bytes) const;
  // Removes the files of all sessions on this host.
  void remove() const noexcept;
  // The size of these files.
  std::uint64_t bytes() const;

  // The complete shards of the session, in any order. Leaves out those with a damaged record, and folders of
  // other users.
  std::vector<MemoryShard> shards() const;

  // Begins to overwrite the shard of a rank: removes its record and returns the path of its file.
  std::filesystem::path begin(int slot, int rank, int world) const;
  // Completes the shard.
  void end(int slot, int rank, int world, const Manifest& record) const;
  // The path of a shard's file.
  std::filesystem::path file(int slot, int rank, int world) const;

 private:
  std::filesystem::path slot_path(int slot) const;

  std::filesystem::path base_, path_, session_;
};

}  // namespace shoal
