// How the tensor memory accelerator finds a tile of a matrix.
#pragma once

#include <cuda.h>

#include "core/tensor.h"

namespace shoal::cuda {

// The map of a row-major matrix of bfloat16. Its tiles have `rows` rows and `columns` columns, which are 128
// bytes and lie swizzled in shared memory. The matrix is aligned to 16 bytes, and so are its rows. Throws if
// the driver does not know such maps.
CUtensorMap make_tensor_map(const Tensor& matrix, int columns, int rows);

}  // namespace shoal::cuda
