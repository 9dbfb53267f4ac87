// The kernels of one level, as the program sees them. All files of this folder but levels.cpp are compiled
// once for each level, and of their names only that of one function stays (cmake/cpu_levels.cmake): an inline
// function that was compiled for AVX-512 must not take the place of the same one elsewhere.
#pragma once

#include <cstddef>
#include <memory>

#include "ops/cpu/cpu.h"

namespace shoal::cpu {

struct LevelKernels {
  std::unique_ptr<Backend> (*make_backend)(int threads, CpuLevel level);
  std::size_t (*scratch_bytes)(int threads, const KernelSizes& sizes, CpuLevel level);
};

using GetLevelKernels = const LevelKernels&();

}  // namespace shoal::cpu
