// Backends by their names.
#pragma once

#include "ops/backend.h"

namespace shoal {

struct BackendOptions {
  int threads = 0;     // cpu: as above
  int local_rank = 0;  // cuda: ranks of a host take its GPUs in turn
  bool tf32 = false;   // cuda: products of float32 on tensor cores, which round to 10 bits of mantissa
  // cuda: algorithms of products are chosen by timing, and kept in the user's cache folder. Otherwise the
  // choice depends on nothing but the kind of GPU and cuBLASLt's version.
  bool tune = true;
};
// "cpu", "reference" or "cuda" (ops/cuda/cuda.h); throws UserError for another, and where there is no GPU.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options = {});

}  // namespace shoal
