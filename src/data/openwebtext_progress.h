// The progress of a preparation of OpenWebText, and the file that stores it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/documents.h"

namespace shoal {

// A position in the input: a number of whole files, and a number of tasks of the next one.
struct InputPlace {
  std::int64_t files = 0;
  std::uint64_t files_hash = 0;  // of their names, sizes and times
  std::int64_t tasks = 0;
  std::uint64_t tasks_hash = 0;  // of the bytes they read
  double input_bytes = 0;        // for the progress bar
  OddFiles odd{};                // in the whole files, except those in parcels
};

struct OpenWebTextProgress {
  InputPlace place;
  std::int64_t documents = 0;  // begun so far
  OddFiles odd_in_parcels;     // so far
  SplitMeta train, val;        // written so far
};

// Replaces the file in one step, and syncs it to the disk. `settings` describes the options that the result
// depends on. Throws Error when the disk is full.
void save_progress(const std::filesystem::path& folder, const std::string& settings,
                   const OpenWebTextProgress& progress);
bool has_progress(const std::filesystem::path& folder);
// Links are not saved: a later call finds them again. Counts no odd files where an older version saved none.
// Throws UserError when the file cannot be read or was saved with other settings.
OpenWebTextProgress load_progress(const std::filesystem::path& folder, const std::string& settings);
void remove_progress(const std::filesystem::path& folder);

}  // namespace shoal
