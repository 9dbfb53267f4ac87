// Bytes that are read once from front to back: a file, or a member of an archive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/file.h"

namespace shoal {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `size` bytes into `out`; 0 only at the end. Throws UserError naming the source when it cannot be
  // read.
  virtual std::size_t read(char* out, std::size_t size) = 0;

  // Sources that can seek return the new position, as lseek; the others -1.
  virtual std::int64_t seek(std::int64_t offset, int whence);
  virtual bool seekable() const { return false; }
};

// `bytes`, which must outlive this.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::size_t read(char* out, std::size_t size) override;
  std::int64_t seek(std::int64_t offset, int whence) override;
  bool seekable() const override { return true; }

 private:
  std::string_view bytes_;
  std::size_t position_ = 0;
};

// `bytes` and then the rest of `source`, which must both outlive this.
class PrefixedSource : public ByteSource {
 public:
  PrefixedSource(std::string_view bytes, ByteSource& source) : prefix_(bytes), rest_(source) {}
  std::size_t read(char* out, std::size_t size) override;

 private:
  MemorySource prefix_;
  ByteSource& rest_;
};

// Reads on until `to` holds `size` bytes or `source` ends; whether it was the former.
bool fill(std::string& to, std::size_t size, ByteSource& source);

class FileSource : public ByteSource {
 public:
  // Throws UserError when the file cannot be opened or is no regular file.
  explicit FileSource(std::filesystem::path path);

  std::size_t read(char* out, std::size_t size) override;
  std::int64_t seek(std::int64_t offset, int whence) override;
  bool seekable() const override { return true; }
  std::int64_t bytes_read() const { return bytes_read_; }  // the furthest that was read, for progress

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t position_ = 0, bytes_read_ = 0;
};

}  // namespace shoal
