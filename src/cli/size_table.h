#pragma once

#include "cli/command.h"

namespace shoal::cli {

// `shoal size --table`: twelve models beside each other on so many ranks. All but their sizes comes from the
// config, or without one from the character model of W3.
void print_size_table(const ConfigOptions& options, int ranks);

}  // namespace shoal::cli
