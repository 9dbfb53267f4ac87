// A pseudo-random permutation of [0, n), computed element by element without memory or state.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace shoal {

// A balanced Feistel network (Luby and Rackoff 1988) over the smallest even number of bits that covers n,
// whose round function is Philox. Values outside [0, n) are enciphered again until they fall inside (cycle
// walking, Black and Rogaway 2002), which takes at most four passes on average.
class Permutation {
 public:
  // n >= 1. Different pairs (seed, index) give unrelated permutations.
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t index);

  std::uint64_t operator()(std::uint64_t i) const;  // i < n

 private:
  std::uint64_t n_, index_;
  PhiloxKey key_;
  int half_bits_;
};

}  // namespace shoal
