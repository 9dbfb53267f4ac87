// A stand-in for CUDA's runtime and for NCCL where there is no GPU, for src/comm/nccl compiled beside it:
// ranks are threads of one process, streams are threads with a list of tasks, and the GPUs' memory is the
// host's at addresses that are none, as in tests/ops/far_backend.h. The null stream, which the emulated CUDA
// backend computes on, does everything at once: where it has to wait for an event, the caller does.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace shoal::emulated {

inline constexpr std::uintptr_t kFar = std::uintptr_t{1} << 62;

// There and back.
template <typename T>
T* moved(T* data) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) ^ kFar);
}
inline bool is_far(const void* data) { return (reinterpret_cast<std::uintptr_t>(data) & kFar) != 0; }

// Puts a task behind what the stream has.
void enqueue(cudaStream_t stream, std::function<void()> task);
// Of the calling thread.
int current_device();

}  // namespace shoal::emulated
