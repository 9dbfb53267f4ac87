#include "comm/nccl/handles.h"

#include "core/error.h"

namespace shoal::nccl {

void check(cudaError_t status) {
  if (status != cudaSuccess) {
    fail("the GPU failed: {} ({}, found in a collective)", cudaGetErrorString(status),
         cudaGetErrorName(status));
  }
}

std::string text_of(ncclResult_t result, ncclComm_t comm) {
  const std::string more = comm ? ncclGetLastError(comm) : "";
  return fmt::format("NCCL: {}{}; NCCL_DEBUG=WARN says more", ncclGetErrorString(result),
                     more.empty() ? "" : fmt::format(" ({})", more));
}

GpuStream make_stream() {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return GpuStream(stream);
}

GpuEvent make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return GpuEvent(event);
}

void* DeviceScratch::take(std::size_t bytes) {
  if (bytes > bytes_) {
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail("the GPU's memory is full: sums of bfloat16 over ranks need {} MiB more", (bytes >> 20) + 1);
    }
    if (!memory) check(cudaGetLastError());
    blocks_.emplace_back(memory);
    bytes_ = bytes;
  }
  return blocks_.empty() ? nullptr : blocks_.back().get();
}

bool is_on_gpu(const void* data) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeDevice;
}

}  // namespace shoal::nccl
