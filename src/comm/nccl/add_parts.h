// The one kernel that collectives need beside NCCL's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace shoal::nccl {

// Sums over ranks, in their order, in float32, rounded once. All in the GPU's memory.
struct PartsOfRanks {
  const bfloat16* own = nullptr;     // [count], of rank `rank`
  const bfloat16* others = nullptr;  // [ranks - 1, count], of the others in their order
  int rank = 0, ranks = 1;
  std::int64_t count = 0;
};
// out [count] may be parts.own.
cudaError_t add_parts(bfloat16* out, const PartsOfRanks& parts, cudaStream_t stream);

}  // namespace shoal::nccl
