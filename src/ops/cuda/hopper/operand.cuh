// The descriptor of a product's operand in shared memory (PTX ISA, matrix descriptor of wgmma).
#pragma once

#include "ops/cuda/gpu.cuh"

namespace shoal::cuda::hopper {

// The operand begins at `at` and has rows of 128 bytes, which are swizzled. `groups` is the distance of
// groups of 8 rows in bytes, and `panels` that of columns beyond 128 bytes, which matters to transposed
// operands.
__device__ inline std::uint64_t operand(SharedAddress at, int groups, int panels) {
  constexpr std::uint64_t kSwizzle128 = 1;
  const auto field = [](int bytes) { return static_cast<std::uint64_t>(bytes >> 4); };
  return (at & 0x3ffffu) >> 4 | field(panels) << 16 | field(groups) << 32 | kSwizzle128 << 62;
}

}  // namespace shoal::cuda::hopper
