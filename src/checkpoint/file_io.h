// Files as a checkpoint needs them: mapped for reading, written with checksums and made durable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal {

// A file is checksummed in blocks of this many bytes (XXH3-64), so that a part of it can be verified alone.
inline constexpr std::uint64_t kChecksumBlock = 4u << 20;

std::uint64_t checksum(std::span<const std::byte> data);
std::uint64_t checksum(std::string_view text);

struct FileSummary {
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> checksums;  // one per block, the last one of what is left
  bool operator==(const FileSummary&) const = default;
};

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

// A whole file, mapped read-only. Throws UserError when it is missing or cannot be read.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)), data_(std::exchange(other.data_, {})) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return data_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> data_;
};

// Creates (or empties) a file and appends to it, with checksums. Throws UserError, with the system's reason,
// when the file cannot be created or written, such as a full disk.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  void write(std::span<const std::byte> data);
  FileSummary finish();  // closes it once it is on the disk

 private:
  void end_block();

  std::filesystem::path path_;
  FileDescriptor file_;
  FileSummary summary_;
  std::vector<std::byte> block_;  // the start of a block whose end has not come yet
};

// The whole of a text file; throws UserError when it cannot be read or is larger than `limit` bytes.
std::string read_text(const std::filesystem::path& path, std::uint64_t limit);
void write_text(const std::filesystem::path& path, std::string_view text);

// Makes the names in a directory durable. Throws UserError when the directory cannot be opened.
void sync_directory(const std::filesystem::path& directory);

// Points `link` at `target` (relative to the link's directory) in one step: readers see the old target or the
// new.
void replace_symlink(const std::filesystem::path& link, const std::string& target);

}  // namespace shoal
