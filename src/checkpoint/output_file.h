// A file that is written with checksums and made durable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace shoal {

// A file is checksummed in blocks of this many bytes (XXH3-64), so that a part of it can be verified alone.
inline constexpr std::uint64_t kChecksumBlock = 4u << 20;

std::uint64_t checksum(std::span<const std::byte> data);
std::uint64_t checksum(std::string_view text);

struct FileSummary {
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> checksums;  // one per block; the last block may be shorter
  bool operator==(const FileSummary&) const = default;
};

// Writes a file from its beginning, with checksums. Throws UserError, with the system's reason, when the file
// cannot be created or written, for example on a full disk.
class OutputFile {
 public:
  // An existing file is emptied, or keeps its space on the file system for the new content.
  enum class Existing { emptied, overwritten };
  explicit OutputFile(std::filesystem::path path, Existing existing = Existing::emptied);
  void write(std::span<const std::byte> data);
  FileSummary finish();  // closes it once it is on the disk

 private:
  void end_block();

  std::filesystem::path path_;
  FileDescriptor file_;
  FileSummary summary_;
  std::vector<std::byte> block_;  // the beginning of a block that is not complete yet
};

}  // namespace shoal
