// Parts of `shoal checkpoint` with a file of their own.
#pragma once

#include "cli/command.h"

namespace shoal::cli {

void add_checkpoint_average(CLI::App& checkpoint);

}  // namespace shoal::cli
