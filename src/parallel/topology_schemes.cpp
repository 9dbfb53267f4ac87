#include "parallel/topology_schemes.h"

#include <array>
#include <bit>
#include <numeric>

namespace shoal {
namespace {

using Rounds = std::vector<Topology::Round>;

bool power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

// Workers first ... first + count - 1.
Topology::Group range(int first, int count) {
  Topology::Group group(static_cast<std::size_t>(count));
  std::iota(group.begin(), group.end(), first);
  return group;
}

Rounds complete(int workers, int) { return {{range(0, workers)}}; }

// Everyone with one neighbour, then with the other.
Rounds ring(int workers, int) {
  Rounds rounds(2);
  for (int i = 0; i < workers; i += 2) {
    rounds[0].push_back({i, i + 1});
    rounds[1].push_back({i, (i + workers - 1) % workers});
  }
  return rounds;
}

Rounds exponential(int workers, int) {
  Rounds rounds;
  for (int distance = 1; distance < workers; distance *= 2) {
    auto& round = rounds.emplace_back();
    for (int i = 0; i < workers; ++i) {
      if ((i ^ distance) > i) round.push_back({i, i ^ distance});
    }
  }
  return rounds;
}

bool fits_alternating(int workers, int per_node) {
  const int nodes = per_node > 0 ? workers / per_node : 0;
  return per_node >= 2 && workers % per_node == 0 && nodes >= 2 && power_of_two(nodes);
}

// Pairs of nodes as in exp. In one of its two rounds a pair averages as a whole, in the other each of its
// nodes alone; every second pair has them the other way round, so that both kinds of links are in use in
// both.
Rounds alternating(int workers, int per_node) {
  Rounds rounds;
  const int nodes = workers / per_node;
  int pair = 0;  // counts on over all distances
  for (int distance = 1; distance < nodes; distance *= 2) {
    Topology::Round first, second;
    for (int node = 0; node < nodes; ++node) {
      const int other = node ^ distance;
      if (other < node) continue;
      auto& alone = pair % 2 == 0 ? first : second;
      auto& together = pair % 2 == 0 ? second : first;
      alone.push_back(range(node * per_node, per_node));
      alone.push_back(range(other * per_node, per_node));
      auto both = range(node * per_node, per_node);
      const auto rest = range(other * per_node, per_node);
      both.insert(both.end(), rest.begin(), rest.end());
      together.push_back(std::move(both));
      ++pair;
    }
    rounds.push_back(std::move(first));
    rounds.push_back(std::move(second));
  }
  return rounds;
}

constexpr std::array kSchemes = {
    TopologyScheme{"complete", "two workers or more", false, [](int, int) { return true; }, complete},
    TopologyScheme{"ring", "an even number of workers", false, [](int n, int) { return n % 2 == 0; }, ring},
    TopologyScheme{"exp", "a power of two workers", false, [](int n, int) { return power_of_two(n); },
                   exponential},
    TopologyScheme{
        "alternating-exp-ring",
        "a power of two nodes, two at least, with the same number of workers on each, two at least", true,
        fits_alternating, alternating},
};

}  // namespace

std::span<const TopologyScheme> topology_schemes() { return kSchemes; }

}  // namespace shoal
