// Products with few rows, those of generating text. They wait for the weights, which are read once.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/kernels.h"

namespace shoal::cuda {

// y x or f32 [R, N] = x x [R, K] . w x [N, K]^T + bias x [N] (bias may be empty), R at most kFewRows. The
// bits of a row do not depend on the other rows, nor on how many there are.
void few_rows_product(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias,
                      cudaStream_t stream);
// The same for hidden x [R, N], and y x [R, N] = GELU(hidden).
void few_rows_gelu(const Tensor& y, const Tensor& hidden, const Tensor& x, const Tensor& w,
                   const Tensor& bias, Gelu kind, cudaStream_t stream);

}  // namespace shoal::cuda
