#include "ops/cuda/cuda.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/fused_attention.h"

extern "C" __attribute__((visibility("default"))) const shoal::cuda::Library* shoal_cuda_library();
extern "C" const shoal::cuda::Library* shoal_cuda_library() {
  using namespace shoal;
  static constexpr cuda::Library kLibrary{[](const CudaOptions& options) -> std::unique_ptr<Backend> {
                                            return std::make_unique<cuda::CudaBackend>(options);
                                          },
                                          cuda::devices, cuda::no_device, cuda::version,
                                          cuda::fused_attention_library};
  return &kLibrary;
}
