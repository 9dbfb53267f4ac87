// A folder that is written beside its place and moved there when it is whole.
#pragma once

#include <filesystem>

#include "core/file.h"

namespace shoal {

class StagedFolder {
 public:
  // Creates `out`.partial, clearing what a killed process left there unless that is to be kept. Throws
  // UserError when it cannot be created, when another process is at it, or when `out` exists and is no folder
  // or, unless it is to be replaced, not empty.
  explicit StagedFolder(const std::filesystem::path& out, bool replace = false,
                        bool keep_what_is_there = false);
  ~StagedFolder();  // removes what was not committed, unless keep was called
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return staging_; }  // where to write
  void clear();
  void keep() { keep_ = true; }
  // Moves the folder into place; an older one there is removed. Throws Error when that fails.
  void commit();

 private:
  std::filesystem::path out_, staging_;
  FileDescriptor lock_;
  bool keep_ = false;
};

}  // namespace shoal
