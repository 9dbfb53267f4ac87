// The steps of a run of many ranks without running it: the real engine and the real model, over a backend
// that computes nothing and a communicator that sends nothing.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "comm/recording.h"
#include "config/plan.h"

namespace shoal {

struct DryRun {
  // What one rank, and others like it, take and do.
  struct Rank {
    std::vector<int> ranks;                 // those alike, the lowest first
    int passes = 0;                         // micro-batches of a step, one after the other
    double flops = 0;                       // of a step's matrix products and attention
    std::size_t allocated = 0;              // bytes of the backend's memory, at most
    std::vector<Recording::Total> traffic;  // of all steps, as what follows
    std::map<int, std::int64_t> links;      // bytes to each rank that the first of them sends to
    std::int64_t bytes = 0;                 // over all links
  };
  std::vector<Rank> ranks;
  // One, but with gossip one for every round of a period: each sends something else.
  int steps = 1;
  // With the ranks' hosts known: the most bytes that leave one host in all steps.
  std::int64_t host_bytes = 0;
};

// Runs every rank of the plan in turn. `ranks_per_host` neighbouring ranks share a host; 0: unknown.
DryRun dry_run(const RunPlan& plan, int ranks_per_host = 0);

}  // namespace shoal
