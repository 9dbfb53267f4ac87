#include "ops/cuda/memory.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "ops/cuda/check.h"
#include "ops/cuda/cuda.h"
#include "ops/errors.h"

namespace shoal::cuda {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::string version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version_text(version);
}

std::string no_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return "";
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) return "there is no NVIDIA driver";
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver is for CUDA {} and older, this build is of CUDA {}",
                       version_text(driver), version());
  }
  if (status == cudaSuccess || status == cudaErrorNoDevice) return "there is no NVIDIA GPU";
  return cudaGetErrorString(status);
}

std::vector<CudaDevice> devices() {
  std::vector<CudaDevice> found;
  int count = 0;
  if (!no_device().empty()) return found;
  check(cudaGetDeviceCount(&count));
  for (int number = 0; number < count; ++number) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, number));
    found.push_back({properties.name, properties.totalGlobalMem, properties.major, properties.minor});
  }
  return found;
}

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

int gpu_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

void check_head(std::int64_t channels, std::int64_t most) {
  if (channels > most)
    fail("the CUDA backend's attention has at most {} channels a head, not {}", most, channels);
}

CurrentGpu::CurrentGpu(int which) {
  const auto all = devices();
  if (all.empty()) check(cudaErrorNoDevice);
  number = which % static_cast<int>(all.size());
  const auto& device = all[static_cast<std::size_t>(number)];
  name = device.name;
  if (device.major < 8) {
    fail_user("the GPU {} has compute capability {}.{}; the CUDA backend needs 8.0 (Ampere) or newer", name,
              device.major, device.minor);
  }
  check(cudaSetDevice(number));
}

GpuStream make_gpu_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return GpuStream(stream);
}

GpuEvent make_gpu_event(unsigned flags) {
  cudaEvent_t made = nullptr;
  check(cudaEventCreateWithFlags(&made, flags));
  return GpuEvent(made);
}

Pinned take_pinned(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocDefault);
  if (status != cudaSuccess) {
    cudaGetLastError();
    throw OutOfPinnedMemory(fmt::format("{:.0f} MiB of the host's memory cannot be pinned: {}",
                                        static_cast<double>(bytes) / (1 << 20), cudaGetErrorString(status)));
  }
  std::memset(memory, 0, bytes);
  return Pinned(memory);
}

Mailbox::Mailbox(cudaStream_t stream)
    : stream_(stream),
      memory_(take_pinned((kHalves + 1) * kMost)),
      read_{make_gpu_event(), make_gpu_event()} {}

void Mailbox::send(void* to, const void* host, std::size_t bytes) {
  if (used_ + bytes > kMost) {
    check(cudaEventRecord(read_[half_].get(), stream_));
    half_ = (half_ + 1) % kHalves;
    used_ = 0;
    check(cudaEventSynchronize(read_[half_].get()));
  }
  std::byte* place = half(half_) + used_;
  used_ += bytes;
  std::memcpy(place, host, bytes);
  check(cudaMemcpyAsync(to, place, bytes, cudaMemcpyHostToDevice, stream_));
}

void Mailbox::fetch(void* host, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(half(kHalves), from, bytes, cudaMemcpyDeviceToHost, stream_));
  check(cudaStreamSynchronize(stream_));
  std::memcpy(host, half(kHalves), bytes);
}

Memory take_memory(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, or the next launch would report it
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    constexpr double kMiB = 1 << 20;
    throw OutOfDeviceMemory(
        fmt::format("the GPU's memory is full: {:.0f} MiB more are needed, {:.0f} of {:.0f} MiB are free",
                    static_cast<double>(bytes) / kMiB, static_cast<double>(free) / kMiB,
                    static_cast<double>(total) / kMiB));
  }
  check(status);
  return Memory(memory);
}

void* KernelScratch::take_bytes(std::size_t bytes) {
  if (bytes > bytes_ || blocks_.empty()) {
    blocks_.push_back(take_memory(bytes));
    bytes_ = bytes;
  }
  return blocks_.back().get();
}

}  // namespace shoal::cuda
