// The current GPU, its streams and events, pinned memory, and scratch memory of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/cuda.h"

namespace shoal::cuda {

// See ops/cuda/cuda.h.
std::vector<CudaDevice> devices();
std::string no_device();
std::string version();

// A GPU of this process, made current for the calling thread.
struct CurrentGpu {
  int number = 0;
  std::string name;

  // `which` is CudaOptions::device. Throws UserError if the GPU is too old.
  explicit CurrentGpu(int which);
};

// An attribute of the calling thread's GPU.
int gpu_attribute(cudaDeviceAttr which);

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using GpuStream = std::unique_ptr<CUstream_st, StreamDeleter>;
GpuStream make_gpu_stream();

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using GpuEvent = std::unique_ptr<CUevent_st, EventDeleter>;
GpuEvent make_gpu_event(unsigned flags = cudaEventDefault);

struct MemoryDeleter {
  void operator()(void* memory) const { cudaFree(memory); }
};
using Memory = std::unique_ptr<void, MemoryDeleter>;
// Throws OutOfDeviceMemory.
Memory take_memory(std::size_t bytes);

struct PinnedDeleter {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
using Pinned = std::unique_ptr<void, PinnedDeleter>;
// Pinned host memory, zeroed. Throws OutOfPinnedMemory.
Pinned take_pinned(std::size_t bytes);

// Small copies between host and GPU through pinned memory. The host does not wait for a copy to the GPU,
// unless it is kHalves * kMost bytes ahead.
class Mailbox {
 public:
  static constexpr std::size_t kMost = std::size_t{2} << 20;  // bytes of a copy

  explicit Mailbox(cudaStream_t stream);
  void send(void* to, const void* host, std::size_t bytes);
  // Blocks until the stream has got there.
  void fetch(void* host, const void* from, std::size_t bytes);

 private:
  static constexpr int kHalves = 2;
  std::byte* half(int which) const { return static_cast<std::byte*>(memory_.get()) + which * kMost; }

  cudaStream_t stream_;
  Pinned memory_;           // two halves for copies to the GPU, a third for copies from it
  GpuEvent read_[kHalves];  // the copies out of this half are complete
  int half_ = 0;
  std::size_t used_ = 0;  // of the half
};

// Memory for one op at a time. Smaller blocks are kept when it grows, since a captured graph may use them.
class KernelScratch {
 public:
  template <typename T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }

 private:
  void* take_bytes(std::size_t bytes);

  std::vector<Memory> blocks_;
  std::size_t bytes_ = 0;  // of the last one
};

}  // namespace shoal::cuda
