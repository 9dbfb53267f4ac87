// Products with GELU or its slope, in one own kernel on GPUs of compute capability 9.
#pragma once

#include "ops/cuda/memory.h"
#include "ops/cuda/product.h"
#include "ops/kernels.h"

namespace shoal::cuda {

// Whether the current GPU has the kernel.
bool has_gelu_product();

// A product with Epilogue::gelu, or with gelu_slope and perhaps sums, for either kind of GELU; GELU is that
// of aux as it is stored. Returns false, and computes nothing, where the GPU or the operands do not fit.
bool gelu_product(const Product& product, Gelu kind, KernelScratch& scratch, cudaStream_t stream);

}  // namespace shoal::cuda
