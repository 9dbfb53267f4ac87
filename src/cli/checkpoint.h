// The actions of `shoal checkpoint` that have a file of their own.
#pragma once

#include "cli/command.h"

namespace shoal::cli {

void add_checkpoint_average(CLI::App& checkpoint);
void add_checkpoint_list(CLI::App& checkpoint);

// The time when a checkpoint was completed, its manifest's, as local time: "2026-01-31 12:00:00".
std::string time_written(const std::filesystem::path& checkpoint);

}  // namespace shoal::cli
