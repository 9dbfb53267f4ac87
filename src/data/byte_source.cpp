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

std::size_t MemorySource::read(char* out, std::size_t size) {
  const auto count = std::min(size, bytes_.size() - position_);
  std::memcpy(out, bytes_.data() + position_, count);
  position_ += count;
  return count;
}

std::int64_t MemorySource::seek(std::int64_t offset, int whence) {
  const auto size = static_cast<std::int64_t>(bytes_.size());
  const auto from = whence == SEEK_SET ? 0 : whence == SEEK_END ? size : static_cast<std::int64_t>(position_);
  if (offset < -from || offset > size - from) return -1;
  position_ = static_cast<std::size_t>(from + offset);
  return from + offset;
}

std::size_t PrefixedSource::read(char* out, std::size_t size) {
  const auto count = prefix_.read(out, size);
  return count > 0 ? count : rest_.read(out, size);
}

bool fill(std::string& to, std::size_t size, ByteSource& source) {
  constexpr std::size_t kStep = 1 << 18;
  while (to.size() < size) {
    const auto filled = to.size();
    to.resize(std::min(size, filled + kStep));
    const auto count = source.read(to.data() + filled, to.size() - filled);
    to.resize(filled + count);
    if (count == 0) return false;
  }
  return true;
}

FileSource::FileSource(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!file_) fail_user("{}: cannot be opened: {}", path_.string(), std::strerror(errno));
  struct stat status {};
  if (fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    fail_user("{}: not a regular file; save the text in a file first", path_.string());
  }
}

std::size_t FileSource::read(char* out, std::size_t size) {
  ssize_t count;
  do {
    count = ::read(file_.get(), out, size);
  } while (count < 0 && errno == EINTR);
  if (count < 0) fail_user("{}: cannot be read: {}", path_.string(), std::strerror(errno));
  position_ += count;
  bytes_read_ = std::max(bytes_read_, position_);
  return static_cast<std::size_t>(count);
}

std::int64_t FileSource::seek(std::int64_t offset, int whence) {
  const auto position = lseek(file_.get(), offset, whence);
  if (position >= 0) position_ = position;
  return position;
}

}  // namespace shoal
