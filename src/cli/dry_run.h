#pragma once

#include "config/config.h"

namespace shoal::cli {

// `shoal train CONFIG --dry-run --ranks N`: prints a rank's memory, and the traffic and compute of a step.
// Needs no data. `asked` is N, 0 where it is not given. `ranks_per_host` neighbouring ranks share a host; 0:
// unknown.
void print_dry_run(Config config, int asked, int ranks_per_host);

}  // namespace shoal::cli
