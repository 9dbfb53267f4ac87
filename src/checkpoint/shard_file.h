// One safetensors file of a checkpoint, as the manifest describes it.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace shoal {

class ShardFile {
 public:
  // With `verify`, checks the blocks of the header against their checksums. Throws UserError when the file is
  // missing, has another size, or its header is damaged. `record` must outlive this object.
  ShardFile(const std::filesystem::path& directory, const FileRecord& record, bool verify);

  // The data of a slice in this file. Throws UserError when the file does not contain it.
  std::span<const std::byte> data(const SliceRecord& slice) const;
  // Checks the blocks that overlap `part`, each once; does nothing without `verify` above. Throws UserError
  // naming the file on a mismatch.
  void verify(std::span<const std::byte> part);
  std::span<const std::byte> bytes() const { return file_.bytes(); }

 private:
  MappedFile open(std::filesystem::path path);
  void verify_range(const std::filesystem::path& path, std::span<const std::byte> all, std::uint64_t begin,
                    std::uint64_t end);

  const FileRecord& record_;
  bool verify_;
  std::vector<bool> verified_;  // by block
  SafetensorsFile file_;
};

}  // namespace shoal
