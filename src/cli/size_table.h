#pragma once

#include "cli/command.h"

namespace shoal::cli {

// `shoal size --table`: twelve models beside each other on so many ranks. All but their sizes comes from the
// config; without one they are character models.
void print_size_table(const ConfigOptions& options, int ranks);

}  // namespace shoal::cli
