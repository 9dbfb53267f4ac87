// The rules by which topologies are made, as a table. A new one is a function and a row in
// topology_schemes.cpp; the config, `shoal gossip` and the tests of all schemes find it there.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "parallel/topology.h"

namespace shoal {

struct TopologyScheme {
  std::string_view name;
  std::string_view needs;  // what `fits` asks for, as it stands in an error
  bool uses_nodes;         // workers per node matter; otherwise per_node is 1 or anything
  // Both get two workers or more. Groups may come in any order, their members too.
  bool (*fits)(int workers, int per_node);
  std::vector<Topology::Round> (*rounds)(int workers, int per_node);
};

std::span<const TopologyScheme> topology_schemes();

}  // namespace shoal
