#pragma once

#include "cli/command.h"

namespace shoal::cli {

// `shoal size --table`: prints a table of models on `ranks` ranks. `list` has their sizes,
// "8/8/512,12/12/768"; if empty, twelve standard models. All other keys come from the config; without one
// they are character models.
void print_size_table(const ConfigOptions& options, int ranks, const std::string& list);

}  // namespace shoal::cli
