#include "parallel/gossip/topology.h"

#include <algorithm>
#include <functional>

#include "core/error.h"

namespace shoal {
const Topology::Group& Topology::group_of(int worker, std::int64_t step) const {
  for (const auto& group : rounds.at(static_cast<std::size_t>(step % period()))) {
    if (std::ranges::binary_search(group, worker)) return group;
  }
  fail("worker {} of {} is in no group of topology {}", worker, workers, name);
}

int rounds_to_hear_of_all(const Topology& topology) {
  std::vector<char> heard(static_cast<std::size_t>(topology.workers));  // of worker 0
  heard[0] = 1;
  int rounds = 0;
  for (int still = 0; still <= topology.period() && !std::ranges::all_of(heard, std::identity());) {
    const auto before = heard;
    for (const auto& group : topology.rounds[static_cast<std::size_t>(rounds++ % topology.period())]) {
      if (std::ranges::any_of(group,
                              [&](int worker) { return heard[static_cast<std::size_t>(worker)] != 0; }))
        for (const int worker : group) heard[static_cast<std::size_t>(worker)] = 1;
    }
    still = heard == before ? still + 1 : 0;
  }
  return rounds;
}

void mix(const Topology& topology, std::int64_t step, std::span<double> x) {
  if (std::ssize(x) != topology.workers) fail("mix: {} numbers for {} workers", x.size(), topology.workers);
  for (const auto& group : topology.rounds.at(static_cast<std::size_t>(step % topology.period()))) {
    double sum = 0;
    for (const int worker : group) sum += x[worker];
    for (const int worker : group) x[worker] = sum / static_cast<double>(group.size());
  }
}

}  // namespace shoal
