// RAII handles of CUDA; errors of CUDA and NCCL as Error.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace shoal::nccl {

void check(cudaError_t status);
// "NCCL: unhandled system error (...)". `comm` may be null.
std::string text_of(ncclResult_t result, ncclComm_t comm);

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using GpuStream = std::unique_ptr<CUstream_st, StreamDeleter>;
// A stream of the highest priority: its kernels run before others that wait for space on the GPU.
GpuStream make_stream();

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using GpuEvent = std::unique_ptr<CUevent_st, EventDeleter>;
GpuEvent make_event();

// GPU memory reused by the operations of one stream. Grows; smaller blocks may be in use and are kept.
class DeviceScratch {
 public:
  void* take(std::size_t bytes);

 private:
  struct Deleter {
    void operator()(void* memory) const { cudaFree(memory); }
  };
  std::vector<std::unique_ptr<void, Deleter>> blocks_;
  std::size_t bytes_ = 0;  // size of the last block
};

// Whether `data` is in GPU memory.
bool is_on_gpu(const void* data);

}  // namespace shoal::nccl
