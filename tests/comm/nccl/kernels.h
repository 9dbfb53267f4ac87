// Included before a kernel's source, which is then C++: cudaLaunchKernel of fake_cuda.cpp calls it thread by
// thread.
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
