// Backends by their kind.
#pragma once

#include <optional>
#include <string_view>

#include "ops/cpu/cpu.h"
#include "ops/kernels.h"
#include "ops/reference/reference.h"

namespace shoal {

enum class BackendKind : std::uint8_t { cpu, cuda, reference };
// Empty for any other name than "cpu", "cuda" and "reference".
std::optional<BackendKind> backend_kind(std::string_view name);

struct BackendOptions {
  int threads = 0;                         // cpu: as make_cpu_backend
  std::optional<CpuLevel> cpu_level = {};  // cpu: the processor's where it is empty
  int local_rank = 0;                      // cuda: GPUs of a host are assigned to its ranks round-robin
  bool tf32 = false;  // cuda: products of float32 on tensor cores, which round to 10 bits of mantissa
  // cuda: the algorithms of products are chosen by timing, and kept in the user's cache folder. Otherwise the
  // choice depends only on the kind of GPU and cuBLASLt's version.
  bool tune = true;
  bool ordered = false;  // cuda: equal operands give equal bits every time
};
// Throws UserError when `cuda` finds no GPU (ops/cuda/cuda.h).
std::unique_ptr<Backend> make_backend(BackendKind kind, const BackendOptions& options = {});

// Bytes that a backend's kernels allocate for themselves in training; `threads` are the cpu backend's.
std::size_t scratch_bytes(BackendKind kind, const KernelSizes& sizes, int threads);

LogitsPlan logits_plan(BackendKind backend, DType compute);

}  // namespace shoal
