#include "config/topology_file.h"
#include "parallel/gossip/topology_schemes.h"

#include <algorithm>
#include <filesystem>

#include "config/toml_file.h"
#include "core/error.h"

namespace shoal {
namespace {

constexpr std::int64_t kMostWorkers = 1 << 24;
constexpr std::string_view kPrefix = "file:";  // marks a file in a config, where other values are schemes

class TopologyReader {
 public:
  explicit TopologyReader(std::string file) : file_(std::move(file)) {}

  Topology read() {
    const auto table = parse_toml_file(file_, "topology");
    for (const auto& [key, node] : table) {
      if (key != "name" && key != "rounds") {
        fail_at(node, fmt::format("'{}' is not a key of a topology; it has name and rounds", key.str()));
      }
    }
    topology_.name = std::filesystem::path(file_).stem().string();
    if (const auto* name = table.get("name")) {
      if (!name->is_string()) fail_at(*name, "name is a text");
      topology_.name = name->as_string()->get();
    }
    const auto* rounds = table.get("rounds");
    if (!rounds) {
      fail_user("{}: there are no rounds; write e.g. rounds = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]", file_);
    }
    const auto& all = array(*rounds, "rounds is an array of rounds");
    for (const auto& round : all) topology_.rounds.push_back(read_round(round));
    topology_.workers = static_cast<int>(most_ + 1);
    for (std::size_t i = 0; i < all.size(); ++i) check_partition(i, *all.get(i));
    for (auto& round : topology_.rounds) {
      std::ranges::sort(round, {}, [](const Topology::Group& group) { return group.front(); });
    }
    return std::move(topology_);
  }

 private:
  [[noreturn]] void fail_at(const toml::node& node, std::string_view problem) const {
    shoal::fail_at(file_, node, problem);
  }

  const toml::array& array(const toml::node& node, std::string_view what) const {
    const auto* elements = node.as_array();
    if (!elements) fail_at(node, what);
    if (elements->empty()) fail_at(node, fmt::format("{}; this one is empty", what));
    return *elements;
  }

  Topology::Round read_round(const toml::node& node) {
    Topology::Round round;
    for (const auto& group : array(node, "a round is an array of groups")) {
      auto& members = round.emplace_back();
      for (const auto& worker : array(group, "a group is an array of worker numbers")) {
        const auto* number = worker.as_integer();
        if (!number || number->get() < 0 || number->get() >= kMostWorkers) {
          fail_at(worker, "a worker is a number from 0 on");
        }
        most_ = std::max(most_, number->get());
        members.push_back(static_cast<int>(number->get()));
      }
      std::ranges::sort(members);
    }
    return round;
  }

  void check_partition(std::size_t index, const toml::node& round) const {
    std::vector<int> times(static_cast<std::size_t>(topology_.workers), 0);
    for (const auto& group : topology_.rounds[index]) {
      for (const int worker : group) ++times[worker];
    }
    for (int worker = 0; worker < topology_.workers; ++worker) {
      if (times[worker] == 1) continue;
      fail_at(
          round,
          fmt::format("every worker, 0 to {}, is in one group of a round; in round {} worker {} is in {}",
                      topology_.workers - 1, index, worker, times[worker] == 0 ? "none" : "more than one"));
    }
  }

  std::string file_;
  std::int64_t most_ = 0;
  Topology topology_;
};

}  // namespace

Topology read_topology(const std::string& file) {
  return TopologyReader(file.starts_with(kPrefix) ? file.substr(kPrefix.size()) : file).read();
}

bool is_topology_file(std::string_view name) {
  return name.starts_with(kPrefix) || name.ends_with(".toml") || name.find('/') != std::string_view::npos;
}

Topology find_topology(const std::string& name_or_file, int workers, int per_node) {
  if (!is_topology_file(name_or_file)) {
    try {
      return make_topology(name_or_file, workers, per_node);
    } catch (const NodesMissing& error) {
      fail_user("{}; say how many share one with gossip.local_size (--local-size)", error.what());
    }
  }
  auto topology = read_topology(name_or_file);
  if (topology.workers != workers) {
    fail_user("{} is a topology of {} workers, not of {}", name_or_file, topology.workers, workers);
  }
  return topology;
}

}  // namespace shoal
