// Topologies of a user's own, given as their rounds in TOML:
//
//   name = "pairs"
//   rounds = [
//     [[0, 1], [2, 3]],
//     [[0, 2], [1, 3]],
//   ]
#pragma once

#include <string>
#include <string_view>

#include "parallel/gossip/topology.h"

namespace shoal {

// `rounds` is an array of rounds, each an array of groups of worker numbers from 0 on; `name` may be left
// out. Throws UserError, with line and column, when a round does not have every worker in one group.
Topology read_topology(const std::string& file);

// Does this name a file ("rounds.toml", "file:rounds.toml") rather than a scheme ("ring")?
bool is_topology_file(std::string_view name);

// A scheme's topology or a file's. Throws UserError also where the file is for another number of workers.
Topology find_topology(const std::string& name_or_file, int workers, int per_node);

}  // namespace shoal
