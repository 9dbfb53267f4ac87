// Turns error codes of CUDA and its libraries into Error, with file and line.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace shoal::cuda {

void check(cudaError_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE());
void check(cublasStatus_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE());
// Throws if a head has more channels than kernels have room for.
void check_head(std::int64_t channels, std::int64_t most);

}  // namespace shoal::cuda
