// Options that `shoal gossip topology` and `shoal gossip simulate` share.
#pragma once

#include <string>

#include "cli/command.h"
#include "parallel/gossip/topology.h"

namespace shoal::cli {

// A topology's name or file, the number of workers, and the number of workers on a node.
struct TopologyOptions {
  std::string name;
  int workers = 0;
  int local_size = 0;  // 0: not given

  int per_node() const;
  Topology load() const;
};

void add_local_size(CLI::App& command, TopologyOptions& options);

void add_gossip_simulate(CLI::App& gossip);

// "8,192 workers on 1,024 nodes of 8"
std::string workers_text(int workers, int per_node);

}  // namespace shoal::cli
