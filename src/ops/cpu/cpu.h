// The CPU backend from outside: SIMD, OpenMP threads and oneDNN's matrix products.
#pragma once

#include <cstddef>
#include <memory>

#include "ops/kernel_sizes.h"
#include "ops/kernels.h"

namespace shoal {

// threads 0 means every core that this process may use. The calling thread is one of them.
std::unique_ptr<Backend> make_cpu_backend(int threads = 0);

// Bytes that the kernels allocate for themselves in training.
std::size_t cpu_scratch_bytes(int threads, const KernelSizes& sizes);

}  // namespace shoal
