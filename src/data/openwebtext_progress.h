// How far a preparation of OpenWebText came, and the file that says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "data/dataset.h"

namespace shoal {

// A place in the input: some whole files, and some tasks of the next one.
struct InputPlace {
  std::int64_t files = 0;
  std::uint64_t files_hash = 0;  // of their names, sizes and times
  std::int64_t tasks = 0;
  std::uint64_t tasks_hash = 0;  // of what they read
  double input_bytes = 0;        // for the progress bar
};

struct OpenWebTextProgress {
  InputPlace place;
  std::int64_t documents = 0;  // that have begun
  SplitMeta train, val;        // what was written
};

// Whole or absent, and on the disk. `settings` is what the work depends on but for the input. Throws Error
// when the disk is full.
void save_progress(const std::filesystem::path& folder, const std::string& settings,
                   const OpenWebTextProgress& progress);
bool has_progress(const std::filesystem::path& folder);
// Throws UserError when it cannot be read or was saved with other settings.
OpenWebTextProgress load_progress(const std::filesystem::path& folder, const std::string& settings);
void remove_progress(const std::filesystem::path& folder);

}  // namespace shoal
