// Reads checkpoints: any slice of any tensor, assembled from whatever shards hold it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/slice_source.h"

namespace shoal {

// Accepts a checkpoint's directory, a directory of checkpoints (RUN/checkpoints) or a run's directory, and
// returns the checkpoint's: for the latter two the one that `latest` names, or the newest. Links are
// resolved, so the answer stays what it is when a training run goes on. Throws UserError that lists what was
// looked for.
std::filesystem::path find_checkpoint(const std::filesystem::path& where);

// checksums: every block of a file that is read from is verified before its data are used.
// sizes: only that the files exist in the right size.
enum class Verify { checksums, sizes };

class ShardFile;

// Not for use by several threads at a time; each may open its own.
class CheckpointReader : public SliceSource {
 public:
  // `where` as find_checkpoint takes it. Throws UserError when the manifest is damaged, or a file is missing
  // or has another size.
  explicit CheckpointReader(const std::filesystem::path& where, Verify verify = Verify::checksums);
  ~CheckpointReader() override;

  const std::filesystem::path& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  const CheckpointInfo& info() const { return manifest_.info; }
  const TensorRecord* find(std::string_view name) const;

  // Fills `out` (slice.bytes()) with the elements of a slice, cut in any way. Throws UserError when the
  // checkpoint has no such tensor, has it in another type or shape, does not hold all of its elements, or is
  // damaged.
  void read(const TensorSlice& slice, std::span<std::byte> out) override;

 private:
  ShardFile& shard(std::size_t file);

  std::filesystem::path directory_;
  Verify verify_;
  Manifest manifest_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::vector<std::unique_ptr<ShardFile>> shards_;  // opened when first read from
};

// Reads all of a checkpoint and returns every fault found, each naming its file; empty when it is whole.
// Throws UserError only when there is no checkpoint at `where`.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& where);

struct CheckpointContents {
  std::filesystem::path directory;
  Manifest manifest;
  std::int64_t elements = 0;  // of all tensors, each counted once
  std::uint64_t bytes = 0;    // of all files but the manifest
};
// Reads the manifest alone. `where` as find_checkpoint takes it.
CheckpointContents inspect_checkpoint(const std::filesystem::path& where);

}  // namespace shoal
