// Errors of CUDA and its libraries become ours, with the place in the source.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::cuda {

void check(cudaError_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE());
void check(cublasStatus_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE());
// Throws where attention's tiles of so many channels a head would not fit shared memory.
void check_head(std::int64_t channels, std::int64_t most);

}  // namespace shoal::cuda
