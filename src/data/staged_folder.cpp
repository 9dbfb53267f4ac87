#include "data/staged_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/log.h"
#include "data/openwebtext_progress.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

// Whether a file system, or a folder of one, is mounted here.
bool is_mount_point(const fs::path& folder) {
  struct statx here {
  }, above{};
  if (::statx(AT_FDCWD, folder.c_str(), 0, STATX_TYPE, &here) != 0 ||
      ::statx(AT_FDCWD, folder.parent_path().c_str(), 0, STATX_TYPE, &above) != 0) {
    return false;
  }
  if ((here.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0) {  // Linux 5.8
    return (here.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  }
  return here.stx_dev_major != above.stx_dev_major || here.stx_dev_minor != above.stx_dev_minor;
}

void require_free(const fs::path& out, bool replace) {
  if (!fs::exists(out) && fs::is_symlink(out)) {
    fail_user("{}: a link to a folder that does not exist; create that, or remove the link", out.string());
  }
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out)) fail_user("{}: exists and is no folder", out.string());
  if (is_mount_point(out)) fail_user("{} is a mount point; name a folder in it", out.string());
  if (replace || fs::is_empty(out)) return;
  fail_user("{}: the folder exists and is not empty", out.string());
}

// Whether Shoal writes something of this name to such a folder: a dataset, a model or a checkpoint.
bool is_ours(const std::string& name) {
  constexpr std::array<std::string_view, 12> kNames = {"train.bin",
                                                       "val.bin",
                                                       "test.bin",
                                                       "meta.json",
                                                       "vocab.json",
                                                       "merges.txt",
                                                       "progress.json.new",
                                                       "config.json",
                                                       "generation_config.json",
                                                       "model.safetensors",
                                                       "adapter_config.json",
                                                       "adapter_model.safetensors"};
  return name.starts_with("step-") || name.starts_with(".step-") ||
         std::ranges::find(kNames, name) != kNames.end();
}

void require_removable(const fs::path& staging) {
  std::error_code absent;
  if (!fs::is_directory(staging, absent)) return;
  if (has_progress(staging)) {
    fail_user(
        "{} holds the progress of an interrupted `shoal prepare openwebtext`; resume it with the same "
        "command, or remove the folder",
        staging.string());
  }
  for (const auto& entry : fs::directory_iterator(staging)) {
    if (is_ours(entry.path().filename().string())) continue;
    fail_user(
        "{} is not a file of Shoal's, and its folder would be overwritten; move or remove the folder, or "
        "choose another output",
        entry.path().string());
  }
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_user("{}: cannot be created: {}", folder.string(), error.message());
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder)
    : path_(folder.parent_path() / ("." + folder.filename().string() + ".lock")) {
  const int error = create_locked(file_, path_);
  if (error == 0) return;
  if (!file_) fail_user("cannot create {}: {}", path_.string(), std::strerror(error));
  if (error == EWOULDBLOCK) fail_user("{}: another process is writing this folder", folder.string());
  log::warn("{} cannot be locked ({}): let no other process write {} meanwhile", path_.string(),
            std::strerror(error), folder.string());
}

FolderLock::~FolderLock() {
  std::error_code ignored;
  fs::remove(path_, ignored);  // before its lock is released
}

fs::path plain_path(const fs::path& path) {
  std::error_code error;
  auto result = fs::weakly_canonical(path, error);
  if (error) fail_user("{}: {}; choose another path", path.string(), error.message());
  return result.has_filename() ? result : result.parent_path();
}

std::vector<fs::path> places_of(const fs::path& out) {
  const auto plain = plain_path(out);
  return {plain, plain.string() + ".partial"};
}

StagedFolder::StagedFolder(const fs::path& out, bool replace, bool resumes) : replace_(replace) {
  if (out.empty()) fail_user("the output folder has no name");
  const auto places = places_of(out);  // without links, so that a dataset stays on its disk
  out_ = places.front();
  require_free(out_, replace);
  staging_ = places.back();
  if (out_.has_parent_path()) make_folder(out_.parent_path());
  lock_.emplace(out_);
  if (!resumes || !has_progress(staging_)) require_removable(staging_);
}

void StagedFolder::begin() {
  require_removable(staging_);
  make_folder(staging_);
  remove_ = true;
  for (const auto& entry : fs::directory_iterator(staging_)) fs::remove_all(entry);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (remove_) fs::remove_all(staging_, ignored);
}

bool StagedFolder::swap() const try {
  return fs::exists(out_) && swap_names(staging_, out_);
} catch (const UserError& error) {
  fail_user("{}; {} is whole: move it to another place", error.what(), staging_.string());
}

void StagedFolder::commit() {
  sync_directory(staging_);
  sync_path_to(staging_);
  remove_ = false;  // it is whole: a move that fails keeps it
  if (replace_ && swap()) {
    remove_ = true;  // the old folder, which has this name now
    return sync_path_to(out_);
  }
  if (replace_) fs::remove_all(out_);  // this file system cannot swap
  // Takes the place of an empty folder, but of no other.
  if (std::rename(staging_.c_str(), out_.c_str()) != 0) {
    const int error = errno;
    const bool filled = error == ENOTEMPTY || error == EEXIST;
    fail_user("cannot move {} to {}: {}; {} is whole: move it to another place", staging_.string(),
              out_.string(), filled ? "files were put there meanwhile" : std::strerror(error),
              staging_.string());
  }
  sync_path_to(out_);
}

}  // namespace shoal
