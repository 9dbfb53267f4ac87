// The layout in which `shoal launch` goes on when its ranks become fewer or more.
#pragma once

#include "launch/run_to_restart.h"

namespace shoal::cli {

// The command's own layout, with as many data ranks as there are left. Where `ranks` ranks have none, the
// planner's fastest on typical CPUs, without measuring, for the same results: the global batch stays, and
// with run.deterministic = "layout" the tensor ranks do. A run with parallel.plan = "auto" plans for itself;
// here it is seen whether it can.
RankLayout layout_of_ranks(const RunToRestart& run, int ranks, int ranks_per_host);

}  // namespace shoal::cli
