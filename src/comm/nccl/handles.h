// CUDA's handles as values; its errors and NCCL's as ours.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace shoal::nccl {

void check(cudaError_t status);
// "NCCL: unhandled system error (...)", of a communicator or of none.
std::string text_of(ncclResult_t result, ncclComm_t comm);

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using GpuStream = std::unique_ptr<CUstream_st, StreamDeleter>;
// One whose kernels go before others that wait for room on the GPU.
GpuStream make_stream();

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using GpuEvent = std::unique_ptr<CUevent_st, EventDeleter>;
GpuEvent make_event();

// Memory of the GPU for what follows each other on one stream. What it has outgrown may be in use, and is
// kept.
class Scratch {
 public:
  void* take(std::size_t bytes);

 private:
  struct Deleter {
    void operator()(void* memory) const { cudaFree(memory); }
  };
  std::vector<std::unique_ptr<void, Deleter>> blocks_;
  std::size_t bytes_ = 0;  // of the last one
};

// Whether the GPU's memory is there, and not the host's.
bool is_on_gpu(const void* data);

}  // namespace shoal::nccl
