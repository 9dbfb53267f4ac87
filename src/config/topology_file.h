// Reads topologies that a user defines as rounds in TOML:
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

// `rounds` is an array of rounds, each an array of groups of worker numbers, which count from 0; `name` is
// optional. Throws UserError with line and column unless every worker is in exactly one group of each round.
Topology read_topology(const std::string& file);

// Whether `name` is a file ("rounds.toml", "file:rounds.toml") and not a scheme ("ring").
bool is_topology_file(std::string_view name);

// The topology of a scheme or a file. Throws UserError when the file is for another number of workers.
Topology find_topology(const std::string& name_or_file, int workers, int per_node);

}  // namespace shoal
