// A kernel that sums bfloat16 over ranks, which NCCL would round at every addition.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace shoal::nccl {

// The operands of a sum over ranks, all in the GPU's memory.
struct PartsOfRanks {
  const bfloat16* own = nullptr;     // [count], from rank `rank`
  const bfloat16* others = nullptr;  // [ranks - 1, count], from the other ranks in their order
  int rank = 0, ranks = 1;
  std::int64_t count = 0;
};
// Adds in float32 in the order of ranks and rounds once. out [count] may be parts.own.
cudaError_t add_parts(bfloat16* out, const PartsOfRanks& parts, cudaStream_t stream);

}  // namespace shoal::nccl
