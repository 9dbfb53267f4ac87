// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (2011). Randomness in Shoal is addressed, not consumed: the same (key, counter) gives the same bits on
// every rank, thread and backend, so there is no generator state to store, drift or lose.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shoal {

// The purpose of a stream of random numbers. It is part of the key, so streams never overlap.
enum class PhiloxStream : std::uint32_t {
  init = 1,        // counter: element index / 2 (64 bit), parameter name hash (64 bit)
  dropout = 2,     // counter: see ops/dropout.h
  batch = 3,       // counter: sample within the step, 0, step (64 bit)
  evaluation = 7,  // as batch
  shuffle = 4,     // epoch permutations
  sampling = 5,    // text generation: token position, sample index
  corpus = 6,      // synthetic data and splits by document
  simulation = 8,  // what is drawn to predict a run: see planner/distribution.h
};

struct PhiloxKey {
  std::uint32_t lo;
  std::uint32_t hi;
};

constexpr PhiloxKey philox_key(std::uint64_t seed, PhiloxStream stream) {
  // splitmix64 finalizer, so that neighbouring seeds and streams share no structure.
  std::uint64_t z = seed + 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(stream);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return {static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(z >> 32)};
}

using PhiloxBlock = std::array<std::uint32_t, 4>;

inline constexpr std::uint32_t kPhiloxM0 = 0xD2511F53u;
inline constexpr std::uint32_t kPhiloxM1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxW0 = 0x9E3779B9u;
inline constexpr std::uint32_t kPhiloxW1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

constexpr PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kPhiloxM0) * counter[0];
    const std::uint64_t p1 = static_cast<std::uint64_t>(kPhiloxM1) * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key.lo, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key.hi, static_cast<std::uint32_t>(p0)};
    key.lo += kPhiloxW0;
    key.hi += kPhiloxW1;
  }
  return counter;
}

// 64 random bits / a double uniform in [0, 1) with 53 bits, from the first two words of a block.
constexpr std::uint64_t to_u64(const PhiloxBlock& block) {
  return static_cast<std::uint64_t>(block[1]) << 32 | block[0];
}
constexpr double to_unit(const PhiloxBlock& block) {
  return static_cast<double>(to_u64(block) >> 11) * 0x1p-53;
}

__extension__ using uint128 = unsigned __int128;

// A number in [0, bound) whose bias is below bound / 2^64.
constexpr std::uint64_t to_below(const PhiloxBlock& block, std::uint64_t bound) {
  return static_cast<std::uint64_t>(static_cast<uint128>(to_u64(block)) * bound >> 64);
}

// Two independent standard normal deviates by the Box-Muller transform; and the first of them alone.
std::array<double, 2> to_normals(const PhiloxBlock& block);
inline double to_normal(const PhiloxBlock& block) { return to_normals(block)[0]; }

}  // namespace shoal
