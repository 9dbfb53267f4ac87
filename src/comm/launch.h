// Parts of starting ranks that tests look at.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/world.h"

namespace shoal {

// The value of an environment variable, or null.
using Environment = std::function<const char*(const char* name)>;
// Throws UserError, on task 0 alone, when srun started several tasks without saying how they find each other.
Launch detect_launch(const Environment& environment);

// Tells hosts apart.
std::uint64_t host_hash();

// Where a rank runs, and on which cores it may.
struct Seating {
  std::uint64_t host = 0;   // a hash
  std::uint64_t cores = 0;  // a hash of the affinity mask
};
struct LocalShare {
  int local_rank = 0, local_size = 1;
  int sharing = 1;  // ranks of this host that may run on exactly the same cores
  int hosts = 1;    // of all ranks
};
LocalShare local_share(std::span<const Seating> ranks, int rank);

}  // namespace shoal
