// Sums over rows: over blocks of rows, then over the blocks in order.
#pragma once

#include "ops/cuda/device.cuh"

namespace shoal::cuda {

// out [columns] += sum over i of parts [blocks, stride] at [i, column]; second, which may be null, at
// [i, columns + column].
void fold_parts(float* out, float* second, const float* parts, std::int64_t blocks_of_rows,
                std::int64_t stride, std::int64_t columns, cudaStream_t stream);

}  // namespace shoal::cuda
