// A worker's groups in the rounds of a topology.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "parallel/gossip/topology.h"

namespace shoal {

// One group for each round. Collective over `peers`. Throws Error where the topology has another number of
// workers.
std::vector<std::unique_ptr<Communicator>> split_rounds(Communicator& peers, const Topology& topology);

}  // namespace shoal
