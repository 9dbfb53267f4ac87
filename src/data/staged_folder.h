// A folder that is written beside its final place and moved there when it is complete.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "core/file.h"

namespace shoal {

// The path without symbolic links and without a trailing slash. Throws UserError for loops of links and names
// that are too long.
std::filesystem::path plain_path(const std::filesystem::path& path);

// The plain paths of `out` and of the folder in which StagedFolder writes it.
std::vector<std::filesystem::path> places_of(const std::filesystem::path& out);

// Holds a lock beside a folder, `.NAME.lock`, as long as it lives, and removes the file then. It is a regular
// file: NFS keeps the lock of a directory from no other host. Throws UserError when another process holds it;
// where the file system has no locks, warns and goes on without.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

class StagedFolder {
 public:
  // Locks `out` and changes nothing there yet. Throws UserError when another process writes it, when `out` is
  // not a folder, a mount point or, without `replace`, not empty, and when `out`.partial holds files that
  // Shoal does not write, or progress, unless the caller `resumes` it.
  explicit StagedFolder(const std::filesystem::path& out, bool replace = false, bool resumes = false);
  ~StagedFolder();  // removes a folder that was begun and not committed, unless keep was called
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return staging_; }  // the folder to write to
  // Creates `out`.partial, and removes the files of a killed process in it: call it when the input is known
  // to be good. Throws UserError when it cannot be created.
  void begin();
  void keep() { remove_ = false; }
  // Moves the folder into place and, with `replace`, removes the old one there, once the new one is on the
  // disk: its files must be already. Throws UserError when that fails, or when `out` has been filled
  // meanwhile; the new folder is kept then.
  void commit();

 private:
  bool swap() const;

  std::filesystem::path out_, staging_;
  bool replace_;
  std::optional<FolderLock> lock_;
  bool remove_ = false;
};

}  // namespace shoal
