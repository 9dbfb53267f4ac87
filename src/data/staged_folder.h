// A folder that is written beside its final place and moved there when it is complete.
#pragma once

#include <filesystem>

#include "core/file.h"

namespace shoal {

class StagedFolder {
 public:
  // Creates `out`.partial, and removes the files of a killed process in it unless `keep_what_is_there`.
  // Throws UserError when it cannot be created, when another process uses it, or when `out` is not a folder
  // or, without `replace`, not empty.
  explicit StagedFolder(const std::filesystem::path& out, bool replace = false,
                        bool keep_what_is_there = false);
  ~StagedFolder();  // removes an uncommitted folder, unless keep was called
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return staging_; }  // the folder to write to
  void clear();
  void keep() { keep_ = true; }
  // Moves the folder into place and removes the old one there. Throws Error when that fails.
  void commit();

 private:
  std::filesystem::path out_, staging_;
  FileDescriptor lock_;
  bool keep_ = false;
};

}  // namespace shoal
