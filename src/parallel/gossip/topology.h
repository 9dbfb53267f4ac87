// Who averages with whom in decentralised training (gossip), as values: for every round of a period, groups
// of workers that take the mean of their models. Every worker is in one group of every round, so the matrix
// of a round is symmetric and doubly stochastic. The schemes and their names follow the published
// decentralised trainers; exp is the one-peer exponential graph (Ying et al. 2021).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

struct Topology {
  using Group = std::vector<int>;    // workers, ascending
  using Round = std::vector<Group>;  // a partition of all workers, by their first members
  std::string name;
  int workers = 1;
  std::vector<Round> rounds;  // of one period; step c uses round c mod period

  int period() const { return static_cast<int>(rounds.size()); }
  // Whether all workers average with all others in every round.
  bool is_complete() const {
    return std::ranges::all_of(rounds, [](const Round& round) { return round.size() == 1; });
  }
  const Group& group_of(int worker, std::int64_t step) const;
  bool operator==(const Topology&) const = default;
};

// Properties of averaging alone, without updates.
struct TopologyFacts {
  bool symmetric = false, doubly_stochastic = false;  // of every round's matrix W
  // The rest is told only where both hold.
  double spectral_gap = 0;     // 1 - the largest singular value, but that of the mean, of a period's product
  int rounds_to_average = 0;   // until all hold the exact average from any start; 0: not within rounds_tried
  int rounds_tried = 0;        // up to about 1,000 workers as many as decide it for ever
  double consensus_decay = 0;  // of the distance to the mean, per round: that singular value ^ (1 / period)
};
// Time and memory are linear in workers x period: seconds for 65,536 workers.
TopologyFacts facts_of(const Topology& topology);

// Rounds until worker 0's step has something of every other's: after so many, nobody can be further ahead.
int rounds_to_hear_of_all(const Topology& topology);

// One round on the workers' models: each becomes the mean of its group. x [workers] is one number of each.
// Throws Error where that is not the number of workers.
void mix(const Topology& topology, std::int64_t step, std::span<double> x);

}  // namespace shoal
