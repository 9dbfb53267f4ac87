// An emulation of CUDA's runtime and of NCCL for machines without GPU, linked with src/comm/nccl. Ranks are
// threads of one process, streams are threads with a list of tasks, and GPU memory is host memory at invalid
// addresses, as in tests/ops/far_backend.h. On the null stream, and on streams of the emulated CUDA backend,
// the caller runs everything at once, after the stream's own work; where it must wait for an event, the
// caller waits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace shoal::emulated {

inline constexpr std::uintptr_t kFar = std::uintptr_t{1} << 62;

// Converts an address of the host to one of the GPU, and back.
template <typename T>
T* moved(T* data) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) ^ kFar);
}
inline bool is_far(const void* data) { return (reinterpret_cast<std::uintptr_t>(data) & kFar) != 0; }

// Appends a task to the stream.
void enqueue(cudaStream_t stream, std::function<void()> task);
// The calling thread's device.
int current_device();

}  // namespace shoal::emulated
