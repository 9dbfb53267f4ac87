// Blocks of GPU threads on the CPU: every thread is a fiber that runs until it has to wait for others. Blocks
// run one after the other, those of a cluster together, and their threads in order, or as
// SHOAL_EMULATED_ORDER has it: with a number above 0, in an order that is drawn with it, again after every
// barrier. Kernels without races give the same bits in any order.
#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>

#include "ops/cuda/emulated/races.h"

namespace shoal::emulated {

inline constexpr int kWarp = 32;

inline dim3 gridDim, blockDim;
inline uint3 blockIdx, threadIdx;

struct Launch {
  const void* kernel;
  dim3 grid, block;
  std::size_t shared;
  unsigned cluster = 1;  // blocks along x that run together
};
// Queues the launch on a stream. What a GPU would refuse to launch is the status of the next
// cudaGetLastError().
void launch(const Launch& launch, cudaStream_t stream, std::function<void()> thread);
// Runs `thread` in every thread of every block. A deadlock of a block's threads or a fault of memory is a
// failure (failure.h), and ends it. For one thread at a time.
void run_grid(const Launch& launch, const std::function<void()>& thread);

// --- for the running thread
int lane();
// See races.h.
inline bool notes_accesses = false;
const Runner& running_thread();
std::string running_kernel();
int add_atomically(int* to, int value);
void* dynamic_shared();
void block_barrier();
// A barrier of `threads` threads of the block, by its number.
void barrier_of(int which, int threads);
int rank_in_cluster();
void* shared_of(int rank);  // dynamic shared memory of a block of the cluster
void cluster_barrier();
void wait_until(std::function<bool()> holds);
inline constexpr std::size_t kMostExchanged = 64;  // bytes of a lane
std::byte* begin_exchange();
void end_exchange();
// The values of all lanes of the warp, in the order of lanes; valid until the next exchange but one.
template <typename T>
const T* exchange(const T& mine) {
  static_assert(sizeof mine <= kMostExchanged);
  std::byte* const values = begin_exchange();
  std::memcpy(values + static_cast<std::size_t>(lane()) * sizeof mine, &mine, sizeof mine);
  end_exchange();
  return reinterpret_cast<const T*>(values);
}
// Asynchronous copies of this thread, in groups.
void later(std::function<void()> copy);
void commit();
void wait_until_left(int groups);

}  // namespace shoal::emulated
