// Blocks of GPU threads on the CPU: every thread is a fiber, and runs until it has to wait for others.
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

// What a stream does: at once, or kept while the calling thread captures.
void now_or_kept(std::function<void()> work);
bool capturing();
void begin_capture();
std::vector<std::function<void()>> end_capture();

// Runs `thread` in every thread of every block. Throws where threads of a block wait for what cannot come.
void run_grid(dim3 grid, dim3 block, std::size_t shared, const std::function<void()>& thread);

// --- for the thread that runs
int lane();
void* dynamic_shared();
void block_barrier();
// What every lane of the warp gives, in the order of lanes; valid until the next but one exchange.
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
