// The device, its stream, and memory that kernels use between themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/cuda.h"

namespace shoal::cuda {

// As ops/cuda/cuda.h has them.
std::vector<CudaDevice> devices();
std::string no_device();
std::string version();

// A GPU that this process can use, made the calling thread's own.
struct CurrentGpu {
  int number = 0;
  std::string name;

  // As CudaOptions has it. Throws UserError where there is none that will do.
  explicit CurrentGpu(int which);
};

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
// Throws Error with what was wanted and what is free.
Memory take_memory(std::size_t bytes);

struct PinnedDeleter {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
using Pinned = std::unique_ptr<void, PinnedDeleter>;
// Memory of the host that the GPU copies from and to by itself, zeroed. Throws UserError with what was
// wanted.
Pinned take_pinned(std::size_t bytes);

// Small copies between host and GPU, through pinned memory: the host never waits for one to the GPU, unless
// it is that far ahead.
class Mailbox {
 public:
  static constexpr std::size_t kMost = std::size_t{2} << 20;  // bytes of a copy

  explicit Mailbox(cudaStream_t stream);
  void send(void* to, const void* host, std::size_t bytes);
  // Waits for the stream.
  void fetch(void* host, const void* from, std::size_t bytes);

 private:
  static constexpr int kHalves = 2;
  std::byte* half(int which) const { return static_cast<std::byte*>(memory_.get()) + which * kMost; }

  cudaStream_t stream_;
  Pinned memory_;           // two halves for what goes out, one for what comes in
  GpuEvent read_[kHalves];  // the copies out of this half are complete
  int half_ = 0;
  std::size_t used_ = 0;  // of the half
};

// Memory for one op at a time. What it has outgrown is kept, since a captured graph may use it.
class Scratch {
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
