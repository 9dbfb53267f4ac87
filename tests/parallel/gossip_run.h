// Shared by tests of gossip: topologies, and a short gossip run.
#pragma once

#include <cctype>

#include "parallel/gossip/topology_schemes.h"
#include "parallel/ranks_run.h"

namespace shoal::test {

inline std::vector<Topology> gossip_topologies() {
  std::vector<Topology> all = {make_topology("complete", 3, 1),
                               make_topology("complete", 4, 1),
                               make_topology("ring", 4, 1),
                               make_topology("ring", 6, 1),
                               make_topology("exp", 2, 1),
                               make_topology("exp", 4, 1),
                               make_topology("exp", 8, 1),
                               make_topology("alternating-exp-ring", 4, 2),
                               make_topology("alternating-exp-ring", 8, 2)};
  // Groups of unequal size, workers that are alone for a round, and a period of three.
  all.push_back({"by hand", 5, {{{0, 1, 2}, {3, 4}}, {{0}, {1, 4}, {2, 3}}, {{0, 2, 3, 4}, {1}}}});
  return all;
}

// For the names of tests.
inline std::string title_of(const Topology& topology) {
  std::string title = topology.name + std::to_string(topology.workers);
  std::erase_if(title, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return title;
}

inline constexpr double kGossipClip = 0.05;

// Two periods and a part of the next one. Dropout is on and clipping acts. With three updates per window, the
// last window is incomplete.
inline RanksRun gossip_run(const Topology& topology) {
  RanksRun run;
  run.mesh.workers = topology.workers;
  run.engine = {.grad_clip = kGossipClip, .micro_batches = 2, .gossip = GossipOptions{topology}};
  run.steps = 2 * topology.period() + 2;
  if (run.steps % 3 == 0) ++run.steps;
  run.evaluate_every = 3;
  return run;
}

// Bucket sizes: a bucket per unit, several units per bucket, one bucket for all.
inline constexpr double kTinyBuckets = 1, kSomeBuckets = 16 << 10, kOneBucket = 1 << 30;

inline std::string bytes_of(const std::vector<RunOutcome>& workers) {
  std::string all;
  for (const auto& worker : workers) all += worker.bytes();
  return all;
}

// All parameters, without optimizer state.
inline std::vector<float> parameters_of(const RunOutcome& worker) {
  std::vector<float> all;
  for (const auto& [name, values] : worker.state) {
    if (!name.starts_with("optimizer.")) all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace shoal::test
