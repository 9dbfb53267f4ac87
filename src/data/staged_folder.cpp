#include "data/staged_folder.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

void require_free(const fs::path& out, bool replace) {
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out)) fail_user("{}: exists and is no folder", out.string());
  if (replace || fs::is_empty(out)) return;
  fail_user("{}: the folder exists and is not empty", out.string());
}

}  // namespace

fs::path plain_path(const fs::path& path) {
  auto result = fs::weakly_canonical(path);
  return result.has_filename() ? result : result.parent_path();
}

std::vector<fs::path> places_of(const fs::path& out) {
  const auto plain = plain_path(out);
  return {plain, plain.string() + ".partial"};
}

StagedFolder::StagedFolder(const fs::path& out, bool replace, bool keep_what_is_there) {
  if (out.empty()) fail_user("the output folder has no name");
  const auto places = places_of(out);  // without links, so that a dataset stays on its disk
  out_ = places.front();
  require_free(out_, replace);
  staging_ = places.back();
  std::error_code error;
  fs::create_directories(staging_, error);
  if (error) fail_user("{}: cannot be created: {}", staging_.string(), error.message());
  lock_ = open_file(staging_, O_RDONLY | O_DIRECTORY, "open");
  if (!try_lock(lock_)) fail_user("{}: another process is writing this folder", out_.string());
  if (!keep_what_is_there) clear();
}

void StagedFolder::clear() {
  for (const auto& entry : fs::directory_iterator(staging_)) fs::remove_all(entry);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!staging_.empty() && !keep_) fs::remove_all(staging_, ignored);
}

void StagedFolder::commit() {
  sync_directory(staging_);
  sync_path_to(staging_);
  if (fs::exists(out_) && swap_names(staging_, out_)) {
    keep_ = false;  // the old folder, which has this name now
    return sync_path_to(out_);
  }
  keep_ = true;  // should the move fail, the old one is gone
  fs::remove_all(out_);
  if (std::rename(staging_.c_str(), out_.c_str()) != 0) {
    fail("{}: cannot be moved to {}: {}", staging_.string(), out_.string(), std::strerror(errno));
  }
  staging_.clear();
  sync_path_to(out_);
}

}  // namespace shoal
