#include "parallel/gossip/topology_schemes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "core/error.h"
#include "core/text.h"

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

namespace {

const TopologyScheme& scheme_of(std::string_view name) {
  for (const auto& scheme : topology_schemes()) {
    if (scheme.name == name) return scheme;
  }
  const auto names = topology_names();
  const auto near = nearest(name, names);
  fail_user("there is no topology '{}'; {}", name,
            near.empty()
                ? fmt::format("there are {}, or a TOML file with rounds of your own", fmt::join(names, ", "))
                : fmt::format("did you mean {}?", near));
}

// The nearest numbers of workers, below and above, that a scheme can take: "4 or 8 workers would do".
std::string numbers_that_fit(const TopologyScheme& scheme, int workers, int per_node) {
  std::vector<int> found;
  for (int n = workers - 1; n >= 2 && found.empty(); --n) {
    if (scheme.fits(n, per_node)) found.push_back(n);
  }
  const std::size_t below = found.size();
  for (int n = workers + 1; n <= 4 * workers + 2 * per_node && found.size() == below; ++n) {
    if (scheme.fits(n, per_node)) found.push_back(n);
  }
  return found.empty() ? "" : fmt::format("; {} workers would do", fmt::join(found, " or "));
}

[[noreturn]] void refuse(const TopologyScheme& scheme, int workers, int per_node) {
  const auto& [name, needs, uses_nodes, fits, rounds] = scheme;
  if (!uses_nodes) {
    fail_user("topology {} needs {}, not {}{}", name, needs, workers, numbers_that_fit(scheme, workers, 1));
  }
  const auto problem =
      fmt::format("topology {} needs {}, not {} workers with {} on a node", name, needs, workers, per_node);
  if (per_node < 2) throw NodesMissing(problem);
  throw UserError(problem + numbers_that_fit(scheme, workers, per_node));
}

}  // namespace

Topology make_topology(std::string_view name, int workers, int per_node) {
  const auto& scheme = scheme_of(name);
  if (workers < 1) fail_user("a topology of {} workers has no meaning", workers);
  Topology topology{std::string(name), workers, {{{0}}}};
  if (workers == 1) return topology;
  if (!scheme.fits(workers, per_node)) refuse(scheme, workers, per_node);
  topology.rounds = scheme.rounds(workers, per_node);
  for (auto& round : topology.rounds) {
    for (auto& group : round) std::ranges::sort(group);
    std::ranges::sort(round, {}, [](const Topology::Group& group) { return group.front(); });
  }
  return topology;
}

std::vector<std::string> topology_names() {
  std::vector<std::string> names;
  for (const auto& scheme : topology_schemes()) names.emplace_back(scheme.name);
  return names;
}

int default_per_node(std::string_view name, int workers) {
  for (const auto& scheme : topology_schemes()) {
    if (scheme.name != name || !scheme.uses_nodes) continue;
    for (const int size : {8, 4, 2}) {
      if (scheme.fits(workers, size)) return size;
    }
    return 2;
  }
  return 1;
}

}  // namespace shoal
