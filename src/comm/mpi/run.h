// One rank's part of a run, over any MPI library.
#pragma once

#include "comm/mpi/library.h"
#include "comm/world.h"

namespace shoal::mpi {

// run_mpi with the library that is given.
void run_rank(Library& library, const WorldOptions& options, const RankBody& body);

}  // namespace shoal::mpi
