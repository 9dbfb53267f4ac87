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
struct Device {
  int number = 0;
  std::string name;

  // As CudaOptions has it. Throws UserError where there is none that will do.
  explicit Device(int which);
};

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using GpuStream = std::unique_ptr<CUstream_st, StreamDeleter>;
GpuStream make_stream();

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using GpuEvent = std::unique_ptr<CUevent_st, EventDeleter>;
GpuEvent make_event();  // that keeps no time

struct MemoryDeleter {
  void operator()(void* memory) const { cudaFree(memory); }
};
using Memory = std::unique_ptr<void, MemoryDeleter>;
// Throws Error with what was wanted and what is free.
Memory take_memory(std::size_t bytes);

struct HostMemoryDeleter {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
using HostMemory = std::unique_ptr<void, HostMemoryDeleter>;
// Pinned and zeroed. Throws UserError with what was wanted.
HostMemory take_host_memory(std::size_t bytes);

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
