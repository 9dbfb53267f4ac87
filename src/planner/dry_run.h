// A dry run: executes the steps of all ranks with the real engine and model, over a backend that computes
// nothing and a communicator that sends nothing.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "comm/recording.h"
#include "config/plan.h"

namespace shoal {

struct DryRun {
  // The memory, work and traffic of one rank, and of the ranks that are equal to it.
  struct Rank {
    std::vector<int> ranks;                 // the equal ranks, ascending
    int passes = 0;                         // micro-batches of a step
    double flops = 0;                       // FLOPs of a step's matrix products and attention
    std::size_t allocated = 0;              // peak bytes of the backend's memory
    std::vector<Recording::Total> traffic;  // summed over all steps, as the next two
    std::map<int, std::int64_t> links;      // bytes from ranks[0] to each rank that it sends to
    std::int64_t bytes = 0;                 // sum over all links
  };
  std::vector<Rank> ranks;
  // The number of steps: 1, or with gossip one per round of a period, since rounds have different traffic;
  // with an outer optimizer an interval per round.
  int steps = 1;
  // The largest number of bytes that leave one host in all steps; 0 where hosts are unknown.
  std::int64_t host_bytes = 0;
};

// Runs every rank of the plan in turn. `ranks_per_host` neighbouring ranks share a host; 0: unknown.
DryRun dry_run(const RunPlan& plan, int ranks_per_host = 0);

}  // namespace shoal
