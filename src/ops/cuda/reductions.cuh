// Sums over rows: over blocks of rows, then over the blocks in order.
#pragma once

#include "core/tensor.h"
#include "ops/cuda/device.cuh"

namespace shoal::cuda {

// out g [columns] += sum over i of parts [blocks, stride] at [i, column]; second g [columns] += that at
// [i, columns + column]; third f32 [columns] = that at [i, 2 columns + column]. Both may be empty.
void fold_parts(const Tensor& out, const Tensor& second, const Tensor& third, const float* parts,
                std::int64_t blocks_of_rows, std::int64_t stride, cudaStream_t stream);

}  // namespace shoal::cuda
