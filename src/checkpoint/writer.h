// Writes one checkpoint, by one rank or by many. Every rank writes its own shard into a directory beside the
// final one; rank 0 waits for the shards, writes the manifest and renames the directory. Ranks need no
// communication but the file system they share.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/shard.h"
#include "checkpoint/slice_source.h"

namespace shoal {

std::string step_directory_name(std::int64_t step);  // "step-00000200"

class CheckpointWriter {
 public:
  // Creates ROOT/.step-00000200.ATTEMPT.partial, which ranks may do at the same time. The attempt's name is
  // the same on all ranks and another at every save, so that what is left of one that failed, or of a process
  // that has not quite ended, is never taken for a part of the next. Throws UserError when it cannot.
  CheckpointWriter(std::filesystem::path root, std::int64_t step, const std::string& attempt = "0");

  const std::filesystem::path& partial() const { return partial_; }
  const std::filesystem::path& target() const { return target_; }

  // This rank's slices, as a safetensors file. Returns when it is on the disk. Slices of several ranks may
  // overlap (replicas); a tensor must agree in type and global shape. Throws UserError when it cannot be
  // written, Error when asked to stop.
  void write_shard(int rank, int world, std::span<const SliceView> slices, const std::stop_token& stop = {});

  // The same, of data that are read from elsewhere in pieces of bounded size. `progress` is told the bytes
  // written so far.
  void copy_shard(int rank, int world, std::span<const TensorSlice> slices, SliceSource& from,
                  const std::function<void(std::uint64_t)>& progress = {});

  // The same for a shard that is copied from another folder. Also throws UserError when it is damaged.
  void take_shard(int rank, int world, const std::filesystem::path& folder, Manifest record);

  // Tells rank 0 that this rank's shard will not come, and why; removes what there is of the shard. Another
  // rank's word goes through the file system, and is lost where the disk does not even take that.
  void report_failure(int rank, int world, const std::string& why) noexcept;

  // Rank 0: waits until every rank has written its shard or reported a failure, then makes the checkpoint
  // appear under its name, replacing one of the same step. Throws Error when a rank failed, when one has not
  // come within `patience` or when asked to stop, or when the folder of their shards is gone.
  void commit(const CheckpointInfo& info, int world, std::chrono::seconds patience = std::chrono::minutes(30),
              const std::stop_token& stop = {});

  void abandon() noexcept;  // removes what was written

 private:
  void put_record(int rank, const Manifest& part);
  Manifest collect(int world, std::chrono::seconds patience, const std::stop_token& stop) const;
  std::filesystem::path rename_partial() const;

  std::filesystem::path root_, partial_, target_;
  std::optional<std::string> failure_of_first_;  // on rank 0
};

// Tidies up after a process that was killed: removes partial directories and links, and completes or undoes a
// replacement.
void remove_leftovers(const std::filesystem::path& root);
// Removes a checkpoint so that it is whole or absent at every moment.
void remove_checkpoint(const std::filesystem::path& directory);

}  // namespace shoal
