// Blocks of GPU threads on the CPU: every thread is a fiber that runs until it has to wait for others.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

namespace shoal::emulated {

inline constexpr int kWarp = 32;

inline dim3 gridDim, blockDim;
inline uint3 blockIdx, threadIdx;

// Runs the work of a stream at once or, while the calling thread captures, keeps it.
void now_or_kept(std::function<void()> work);
bool capturing();
void begin_capture();
std::vector<std::function<void()>> end_capture();

// Runs `thread` in every thread of every block. Throws if the threads of a block are deadlocked.
void run_grid(dim3 grid, dim3 block, std::size_t shared, const std::function<void()>& thread);

// --- for the running thread
int lane();
void* dynamic_shared();
void block_barrier();
// The values of all lanes of the warp, in the order of lanes; valid until the next exchange but one.
void* exchange_bytes(const void* mine, std::size_t bytes);
template <typename T>
const T* exchange(const T& mine) {
  return static_cast<const T*>(exchange_bytes(&mine, sizeof mine));
}
// Asynchronous copies of this thread, in groups.
void later(std::function<void()> copy);
void commit();
void wait_until_left(int groups);

}  // namespace shoal::emulated
