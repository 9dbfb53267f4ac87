// A file that records are appended to.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

#include "core/file.h"

namespace shoal {

class RecordFile {
 public:
  // Goes on at the end of a file that is there. Throws UserError where it cannot be written.
  explicit RecordFile(const std::filesystem::path& path);

  // Appends a record, which may be read at once. Throws UserError where there is no room for it: the file
  // then ends in a whole record as before, and the next call writes this one too.
  void append(std::string_view record);
  // Writes what there was no room for, if there is now. May be called while another thread appends.
  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  void write_left();  // throws UserError

  std::filesystem::path path_;
  FileDescriptor file_;
  std::mutex mutex_;
  off_t size_;        // of whole records
  std::string left_;  // records that there was no room for
};

}  // namespace shoal
