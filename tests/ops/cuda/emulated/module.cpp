// The CUDA backend on the emulated GPU, as a module. The host cannot access its memory, as with a real GPU.
#include "ops/cuda/cuda.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/fused_attention.h"
#include "ops/far_backend.h"

extern "C" __attribute__((visibility("default"))) const shoal::cuda::Library* shoal_cuda_library();
extern "C" const shoal::cuda::Library* shoal_cuda_library() {
  using namespace shoal;
  static constexpr cuda::Library kLibrary{
      [](const CudaOptions& options) -> std::unique_ptr<Backend> {
        return std::make_unique<test::FarBackend>(std::make_unique<cuda::CudaBackend>(options));
      },
      cuda::devices, cuda::no_device, cuda::version, cuda::fused_attention_library};
  return &kLibrary;
}
