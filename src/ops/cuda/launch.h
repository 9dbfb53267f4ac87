// The host's part of a launch, on a GPU and on the emulated one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/cuda/check.h"

namespace shoal::cuda {

// Returns false for a grid without blocks, of an empty tensor: it is not launched.
inline bool prepare_launch(const void* kernel, dim3 grid, std::size_t shared) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return false;
  // More than 48 KiB must be asked for; a kernel's own arrays, of up to 8 KiB, count as well.
  constexpr std::size_t kUnasked = 40 << 10;
  if (shared > kUnasked) {
    check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  }
  return true;
}

}  // namespace shoal::cuda
