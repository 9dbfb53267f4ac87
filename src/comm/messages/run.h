// One rank's part of a run, over any MPI transport.
#pragma once

#include "comm/messages/transport.h"
#include "comm/world.h"

namespace shoal::messages {

// run_mpi with the transport that is given.
void run_rank(Transport& transport, const WorldOptions& options, const RankBody& body);

}  // namespace shoal::messages
