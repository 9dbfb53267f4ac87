// The emulated GPU has no kernel for products with GELU, but asks for the sums that come with it.
#include "ops/cuda/gelu_product.h"

namespace shoal::cuda {

bool has_gelu_product() { return true; }

bool gelu_product(const Product&, Gelu, KernelScratch&, cudaStream_t) { return false; }

}  // namespace shoal::cuda
