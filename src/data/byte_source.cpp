#include "data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace shoal {

std::int64_t ByteSource::seek(std::int64_t, int) { return -1; }

FileSource::FileSource(std::filesystem::path path)
    : path_(std::move(path)), fd_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (fd_ < 0) fail_user("{}: cannot be opened: {}", path_.string(), std::strerror(errno));
  struct stat status {};
  if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(fd_);
    fail_user("{}: not a regular file; save the text in a file first", path_.string());
  }
}

FileSource::~FileSource() { close(fd_); }

std::size_t FileSource::read(char* out, std::size_t size) {
  ssize_t count;
  do {
    count = ::read(fd_, out, size);
  } while (count < 0 && errno == EINTR);
  if (count < 0) fail_user("{}: cannot be read: {}", path_.string(), std::strerror(errno));
  position_ += count;
  bytes_read_ = std::max(bytes_read_, position_);
  return static_cast<std::size_t>(count);
}

std::int64_t FileSource::seek(std::int64_t offset, int whence) {
  const auto position = lseek(fd_, offset, whence);
  if (position >= 0) position_ = position;
  return position;
}

}  // namespace shoal
