#include "ops/cuda/memory.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "ops/cuda/check.h"
#include "ops/cuda/cuda.h"

namespace shoal {

std::string no_cuda_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return "";
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "there is no NVIDIA driver";
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver is for CUDA {}.{} and older, this build is of CUDA {}.{}",
                       driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  if (status == cudaSuccess || status == cudaErrorNoDevice) return "there is no NVIDIA GPU";
  return cudaGetErrorString(status);
}

namespace cuda {
namespace {

// "ops/cuda/matmul.cpp" of a path.
std::string_view place(std::string_view file) {
  const auto at = file.rfind("ops/cuda/");
  return at == std::string_view::npos ? file : file.substr(at);
}

}  // namespace

void check(cudaError_t status, const char* file, int line) {
  if (status == cudaSuccess) return;
  fail("the GPU failed: {} ({}, found at {}:{})", cudaGetErrorString(status), cudaGetErrorName(status),
       place(file), line);
}

void check(cublasStatus_t status, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("a matrix product on the GPU failed: {} (cuBLASLt, at {}:{})", cublasLtGetStatusString(status),
       place(file), line);
}

void check_head(std::int64_t channels, std::int64_t most) {
  if (channels > most)
    fail("the CUDA backend's attention has at most {} channels a head, not {}", most, channels);
}

Device::Device(int which) : number(which) {
  if (const auto why = no_cuda_device(); !why.empty()) {
    fail_user("train.backend = \"cuda\" cannot be used: {}; \"cpu\" needs neither", why);
  }
  int devices = 0;
  check(cudaGetDeviceCount(&devices));
  if (number >= devices) fail_user("there is no GPU {}: this machine has {}", number, devices);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, number));
  name = properties.name;
  if (properties.major < 8) {
    fail_user("the GPU {} has compute capability {}.{}; the CUDA backend needs 8.0 (Ampere) or newer", name,
              properties.major, properties.minor);
  }
  check(cudaSetDevice(number));
}

GpuStream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return GpuStream(stream);
}

Memory take_memory(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it would be found again by the next launch
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    constexpr double kMiB = 1 << 20;
    fail(
        "the GPU's memory is full: {:.0f} MiB more are needed, {:.0f} of {:.0f} MiB are free; a smaller "
        "train.micro_batch or train.recompute = \"block\" needs less",
        static_cast<double>(bytes) / kMiB, static_cast<double>(free) / kMiB,
        static_cast<double>(total) / kMiB);
  }
  check(status);
  return Memory(memory);
}

void* Scratch::take_bytes(std::size_t bytes) {
  if (bytes > bytes_ || blocks_.empty()) {
    blocks_.push_back(take_memory(bytes));
    bytes_ = bytes;
  }
  return blocks_.back().get();
}

}  // namespace cuda
}  // namespace shoal
