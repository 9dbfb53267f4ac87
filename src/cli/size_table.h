#pragma once

#include "cli/command.h"

namespace shoal::cli {

// `shoal size --table`: models beside each other on so many ranks, those of `list`, "8/8/512,12/12/768", or
// twelve. All but their sizes comes from the config; without one they are character models.
void print_size_table(const ConfigOptions& options, int ranks, const std::string& list);

}  // namespace shoal::cli
