// The rules by which topologies are made, as a table. A new one is a function and a row in
// topology_schemes.cpp; the config, `shoal gossip` and the tests of all schemes find it there.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "parallel/gossip/topology.h"

namespace shoal {

// A topology needs nodes of several workers, and they were not given.
struct NodesMissing : UserError {
  using UserError::UserError;
};

struct TopologyScheme {
  std::string_view name;
  std::string_view needs;  // what `fits` asks for, as it stands in an error
  bool uses_nodes;         // workers per node matter; otherwise per_node is 1 or anything
  // Both get two workers or more. Groups may come in any order, their members too.
  bool (*fits)(int workers, int per_node);
  std::vector<Topology::Round> (*rounds)(int workers, int per_node);
};

std::span<const TopologyScheme> topology_schemes();

// The topology of a scheme. One worker has nobody to average with, under any name. Throws UserError, naming
// the rule and numbers that would do, where a topology has no meaning for so many workers, and NodesMissing
// where it needs more than one worker per node. A user's own comes from a file: config/topology_file.h.
Topology make_topology(std::string_view name, int workers, int per_node);
std::vector<std::string> topology_names();
// The workers per node where nobody gives them: 1 or, for a scheme that needs nodes of several, the first of
// 8, 4 and 2 that it can be made with.
int default_per_node(std::string_view name, int workers);

}  // namespace shoal
