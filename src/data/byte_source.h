// Bytes that are read once from front to back: a file, or a member of an archive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

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

class FileSource : public ByteSource {
 public:
  // Throws UserError when the file cannot be opened or is no regular file.
  explicit FileSource(std::filesystem::path path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  std::size_t read(char* out, std::size_t size) override;
  std::int64_t seek(std::int64_t offset, int whence) override;
  bool seekable() const override { return true; }
  std::int64_t bytes_read() const { return bytes_read_; }  // the furthest that was read, for progress

 private:
  std::filesystem::path path_;
  int fd_;
  std::int64_t position_ = 0, bytes_read_ = 0;
};

}  // namespace shoal
