#include "parallel/gossip/rounds.h"

#include "core/error.h"

namespace shoal {

std::vector<std::unique_ptr<Communicator>> split_rounds(Communicator& peers, const Topology& topology) {
  if (topology.workers != peers.size()) {
    fail("topology {} is one of {} workers, not {}", topology.name, topology.workers, peers.size());
  }
  std::vector<std::unique_ptr<Communicator>> rounds;
  std::vector<int> first_of_group(static_cast<std::size_t>(topology.workers));
  for (const auto& round : topology.rounds) {
    for (const auto& group : round) {
      for (const int worker : group) first_of_group[static_cast<std::size_t>(worker)] = group.front();
    }
    rounds.push_back(peers.split([&](int worker) {
      return Communicator::SplitKey{first_of_group[static_cast<std::size_t>(worker)], worker};
    }));
  }
  return rounds;
}

}  // namespace shoal
