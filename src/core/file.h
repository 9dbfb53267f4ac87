// Files of the system: descriptors, locks, read-only mappings, and writing that lasts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/bus_error.h"

namespace shoal {

// Owns a descriptor of the system: a file, a pipe, a process.
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
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Opens a file with flags of open(2); a new file gets mode 0644. Throws UserError "cannot ACTION PATH:
// REASON".
FileDescriptor open_file(const std::filesystem::path& path, int flags, std::string_view action);

// Opens /dev/null in the place of standard input, output and error where they are closed: a file that is
// opened later would get the number of one, and the program's messages or another's with it. Reading input
// and writing output go on to fail; what is written to standard error is lost.
void open_standard_streams();

// Locks an open file (flock) until its descriptor is closed, at the latest when the process ends. Returns
// false, with the reason in errno, where it cannot: EWOULDBLOCK while another process holds the lock.
bool try_lock(const FileDescriptor& file);
// Creates or opens a file and locks it, though those who hold its lock may rename or remove it. Returns 0, or
// the system's reason: EWOULDBLOCK while another process holds the lock. `file` is empty where it cannot be
// opened, and has no lock on a file system without locks.
int create_locked(FileDescriptor& file, const std::filesystem::path& path);

// A whole file, mapped read-only, which must not be cut short meanwhile (core/bus_error.h). Throws UserError
// when it is missing, not a regular file, or cannot be read.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        data_(std::exchange(other.data_, {})),
        record_(std::move(other.record_)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return data_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> data_;
  MappingRecord record_;
};

// Returns a whole text file; throws UserError when it cannot be read or is larger than `limit` bytes.
std::string read_text(const std::filesystem::path& path, std::uint64_t limit);
// Returns the rest of a file that may also be a pipe; throws UserError, with the system's reason.
std::string read_rest(std::ifstream& stream, const std::filesystem::path& path);
// Creates or replaces a file and returns when it is on the disk. Throws UserError, with the system's reason.
void write_text(const std::filesystem::path& path, std::string_view text);

// A file that is written beside its place, as .NAME.partial or, while others write that, .NAME.1.partial, and
// renamed when it is complete. Until then the old file of its name, if any, stays as it is; behind a link,
// the file that it leads to is replaced. Throws UserError, with the system's reason.
class StagedFile {
 public:
  explicit StagedFile(std::filesystem::path path);
  ~StagedFile();  // removes a file that was not committed
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  const std::filesystem::path& path() const { return staging_; }  // the file to write
  void write(std::string_view text);
  void commit();  // returns when the file is on the disk and has its name

 private:
  std::filesystem::path path_, target_, staging_;
  FileDescriptor file_;
};

// Writes a text as a staged file: a reader has the old text or the new one.
void replace_text(const std::filesystem::path& path, std::string_view text);

// Writes text over that of a file if the blocks of the file have room for it, for a disk that is full.
// Returns false, and has changed nothing, if they have not; throws UserError, with the system's reason.
bool overwrite_text(const std::filesystem::path& path, std::string_view text);
// Writes all of `data` at the file's position; throws UserError, with the system's reason.
void write_all(const FileDescriptor& file, std::span<const std::byte> data,
               const std::filesystem::path& path);
// Waits until the file is on the disk; throws UserError, with the system's reason.
void sync_file(const FileDescriptor& file, const std::filesystem::path& path);
// Makes the names in a directory durable. Throws UserError when the directory cannot be opened.
void sync_directory(const std::filesystem::path& directory);
// Makes the files of a directory and their names durable, as far as they may be opened.
void sync_files_in(const std::filesystem::path& directory);
// Makes the names of a directory and of all above it durable, as far as those may be opened.
void sync_path_to(const std::filesystem::path& directory);

// Two files or folders of one file system change names, in one step. Returns false where the file system
// cannot do that; throws UserError, with the system's reason, where it fails.
bool swap_names(const std::filesystem::path& one, const std::filesystem::path& other);

// Points `link` at `target` (relative to the link's directory) in one step: readers see the old target or the
// new one. Returns false where the file system has no links; an old link, which would name the old target, is
// removed then. Throws UserError, with the system's reason, where it fails.
bool replace_symlink(const std::filesystem::path& link, const std::string& target);

}  // namespace shoal
