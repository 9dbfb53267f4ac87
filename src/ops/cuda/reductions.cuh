// Sums over rows: over blocks of rows, then over the blocks in order.
#pragma once

#include "core/tensor.h"
#include "ops/cuda/device.cuh"

namespace shoal::cuda {

// out g [columns] += sum over i of parts [blocks, stride] at [i, column]; second g [columns], which may be
// empty, at [i, columns + column].
void fold_parts(const Tensor& out, const Tensor& second, const float* parts, std::int64_t blocks_of_rows,
                std::int64_t stride, cudaStream_t stream);

}  // namespace shoal::cuda
