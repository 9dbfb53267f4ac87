// A stream of bytes: a file, or a member of an archive.
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
  // Reads up to `size` bytes into `out` and returns their number, 0 only at the end. Throws UserError naming
  // the source when it cannot be read.
  virtual std::size_t read(char* out, std::size_t size) = 0;

  // Returns the new position, as lseek does; -1 where the source cannot seek.
  virtual std::int64_t seek(std::int64_t offset, int whence);
  virtual bool seekable() const { return false; }
};

// Reads `bytes`, which must outlive this object.
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

// Reads `bytes` and then the rest of `source`; both must outlive this object.
class PrefixedSource : public ByteSource {
 public:
  PrefixedSource(std::string_view bytes, ByteSource& source) : prefix_(bytes), rest_(source) {}
  std::size_t read(char* out, std::size_t size) override;

 private:
  MemorySource prefix_;
  ByteSource& rest_;
};

// Appends to `to` until it holds `size` bytes or `source` ends. Returns whether it holds `size` bytes.
bool fill(std::string& to, std::size_t size, ByteSource& source);

class FileSource : public ByteSource {
 public:
  // Throws UserError when the file cannot be opened or is not a regular file.
  explicit FileSource(std::filesystem::path path);

  std::size_t read(char* out, std::size_t size) override;
  std::int64_t seek(std::int64_t offset, int whence) override;
  bool seekable() const override { return true; }
  std::int64_t bytes_read() const { return bytes_read_; }  // the furthest position read, for progress bars

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t position_ = 0, bytes_read_ = 0;
};

}  // namespace shoal
