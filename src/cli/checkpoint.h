// Parts of `shoal checkpoint` with a file of their own.
#pragma once

#include "cli/command.h"

namespace shoal::cli {

void add_checkpoint_average(CLI::App& checkpoint);
void add_checkpoint_list(CLI::App& checkpoint);

// Local time of the manifest of a checkpoint, which is written last: "2026-01-31 12:00:00".
std::string time_written(const std::filesystem::path& checkpoint);

}  // namespace shoal::cli
