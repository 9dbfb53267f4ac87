// Finds the launcher of this process, and the ranks that share its host. Separate from world.h for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/world.h"

namespace shoal {

// The value of an environment variable, or null.
using Environment = std::function<const char*(const char* name)>;
Launcher detect_launcher(const Environment& environment);

// Different on different hosts.
std::uint64_t host_hash();

// The host of a rank, and the cores that it may run on.
struct CoreBinding {
  std::uint64_t host = 0;   // host_hash()
  std::uint64_t cores = 0;  // hash of the affinity mask
};
struct LocalShare {
  int local_rank = 0, local_size = 1;
  int sharing = 1;  // ranks of this host with the same affinity mask as this rank, itself included
  int hosts = 1;    // number of hosts over all ranks
};
LocalShare local_share(std::span<const CoreBinding> ranks, int rank);

}  // namespace shoal
