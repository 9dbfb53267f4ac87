// The CUDA backend over the emulated GPU, as a module: its memory is out of reach, as that of a real one.
#include "ops/cuda/cuda.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/far_backend.h"

namespace shoal::cuda {
namespace {

class EmulatedLibrary final : public Library {
 public:
  std::unique_ptr<Backend> make_backend(const CudaOptions& options) override {
    return std::make_unique<test::FarBackend>(std::make_unique<CudaBackend>(options));
  }
  std::vector<CudaDevice> devices() override { return cuda::devices(); }
  std::string no_device() override { return cuda::no_device(); }
  std::string version() override { return cuda::version(); }
};

}  // namespace
}  // namespace shoal::cuda

extern "C" __attribute__((visibility("default"))) shoal::cuda::Library* shoal_cuda_library();
extern "C" shoal::cuda::Library* shoal_cuda_library() {
  static shoal::cuda::EmulatedLibrary library;
  return &library;
}
