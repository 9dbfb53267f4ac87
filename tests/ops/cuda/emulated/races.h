// With SHOAL_EMULATED_RACES=1, finds accesses of a kernel to one address that nothing orders: by threads of a
// block without a barrier between them (not even a warp's exchanges are one), or by two blocks, unless both
// only read or both are atomic. That is the sanitizer's racecheck, for global memory as well. The compiler
// reports the accesses: kernels are compiled as for the thread sanitizer, whose functions are replaced here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::emulated {

// The thread that runs, or none outside of kernels. Blocks are counted from 0.
struct Runner {
  std::uint32_t block = 0, thread = 0, barriers = 0;
  const std::byte* shared = nullptr;
  std::size_t shared_bytes = 0;
};

enum class Access : std::uint8_t { read, write, atomic };

bool finds_races();
// Accesses before it and after it are those of different launches.
void begin_launch();
void note_access(const void* at, std::size_t bytes, Access access, const void* code);

}  // namespace shoal::emulated
