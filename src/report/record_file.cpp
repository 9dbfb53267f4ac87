#include "report/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "core/error.h"

namespace shoal {

RecordFile::RecordFile(const std::filesystem::path& path)
    : path_(path),
      file_(open_file(path, O_WRONLY | O_CREAT | O_APPEND, "write")),
      size_(std::max<off_t>(::lseek(file_.get(), 0, SEEK_END), 0)) {}

void RecordFile::append(std::string_view record) {
  const std::lock_guard lock(mutex_);
  left_ += record;
  write_left();
}

void RecordFile::flush() {
  const std::lock_guard lock(mutex_);
  try {
    if (!left_.empty()) write_left();
  } catch (const UserError&) {  // as append() has said
  }
}

void RecordFile::write_left() {
  try {
    write_all(file_, std::as_bytes(std::span(left_)), path_);
  } catch (const UserError&) {
    (void)!::ftruncate(file_.get(), size_);
    throw;
  }
  size_ += static_cast<off_t>(left_.size());
  left_.clear();
}

}  // namespace shoal
