#include "ops/cuda/cuda.h"
#include "ops/cuda/cuda_backend.h"

namespace shoal::cuda {
namespace {

class CudaLibrary final : public Library {
 public:
  std::unique_ptr<Backend> make_backend(const CudaOptions& options) override {
    return std::make_unique<CudaBackend>(options);
  }
  std::vector<CudaDevice> devices() override { return cuda::devices(); }
  std::string no_device() override { return cuda::no_device(); }
  std::string version() override { return cuda::version(); }
};

}  // namespace
}  // namespace shoal::cuda

extern "C" __attribute__((visibility("default"))) shoal::cuda::Library* shoal_cuda_library();
extern "C" shoal::cuda::Library* shoal_cuda_library() {
  static shoal::cuda::CudaLibrary library;
  return &library;
}
