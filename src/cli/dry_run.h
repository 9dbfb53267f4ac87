#pragma once

#include "config/config.h"

namespace shoal::cli {

// `shoal train CONFIG --dry-run --ranks N`: prints the memory of a rank, and the traffic and compute of a
// step. Needs no data. `asked` is N, or 0 if it is not given. `ranks_per_host` neighbouring ranks share a
// host; 0 means unknown.
void print_dry_run(Config config, int asked, int ranks_per_host);

}  // namespace shoal::cli
