// The CUDA backend from outside: nothing here needs CUDA's headers. Built with -DSHOAL_CUDA=ON.
#pragma once

#include <memory>
#include <string>

#include "ops/backend.h"

namespace shoal {

struct CudaOptions {
  int device = 0;
  // Products of float32 on tensor cores, which round the operands to 10 bits of mantissa.
  bool tf32 = false;
  // Products of a new shape are timed with several of cuBLASLt's algorithms when it is first used; otherwise
  // cuBLASLt's own first choice is taken. The choice holds for all backends of the process.
  bool tune = true;
  // Attention by tensor cores where the sizes allow, otherwise always by the plain kernels.
  bool fast_attention = true;
};

// Throws UserError where there is no GPU, or a driver that is too old.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options = {});
// Why make_cuda_backend would throw, in a sentence; empty where it would not.
std::string no_cuda_device();

}  // namespace shoal
