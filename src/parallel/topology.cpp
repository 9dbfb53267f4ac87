#include "parallel/topology.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "parallel/topology_schemes.h"

namespace shoal {
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
  fail_user("topology {} needs {}, not {} workers with {} on a node{}", name, needs, workers, per_node,
            per_node < 2 ? "; say how many share one with gossip.local_size (--local-size)"
                         : numbers_that_fit(scheme, workers, per_node));
}

}  // namespace

const Topology::Group& Topology::group_of(int worker, std::int64_t step) const {
  for (const auto& group : rounds.at(static_cast<std::size_t>(step % period()))) {
    if (std::ranges::binary_search(group, worker)) return group;
  }
  fail("worker {} of {} is in no group of topology {}", worker, workers, name);
}

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
