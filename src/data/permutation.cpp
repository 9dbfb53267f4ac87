#include "data/permutation.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace shoal {
namespace {
// Four rounds suffice for Luby and Rackoff's strong bound; small n profits from more.
constexpr std::uint32_t kRounds = 6;
}  // namespace

Permutation::Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t index)
    : n_(n),
      index_(index),
      key_(philox_key(seed, PhiloxStream::shuffle)),
      half_bits_(std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2)) {
  assert(n >= 1);
}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  assert(i < n_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = i >> half_bits_, right = i & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const auto bits =
          philox(key_, {static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(index_),
                        static_cast<std::uint32_t>(index_ >> 32)});
      const std::uint64_t next = left ^ (bits[0] & mask);
      left = right;
      right = next;
    }
    i = left << half_bits_ | right;
  } while (i >= n_);
  return i;
}

}  // namespace shoal
