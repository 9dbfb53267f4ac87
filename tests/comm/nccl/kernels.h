// Included before the source of a kernel, to compile it as C++. cudaLaunchKernel in fake_cuda.cpp calls it
// for one thread after another.
#pragma once

#include <cuda_runtime_api.h>

#undef __global__
#define __global__

namespace shoal::emulated {
inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;
}  // namespace shoal::emulated

namespace shoal::nccl {
using emulated::blockDim;
using emulated::blockIdx;
using emulated::gridDim;
using emulated::threadIdx;
}  // namespace shoal::nccl
