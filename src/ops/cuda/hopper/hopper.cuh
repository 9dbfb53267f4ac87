// Primitives that only GPUs of compute capability 9 have: barriers that count bytes, copies of tiles by the
// tensor memory accelerator, and products of a group of four warps out of shared memory. PTX ISA, chapters
// mbarrier, cp.async.bulk.tensor and wgmma. tests/ops/cuda/emulated replaces this header, too.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/gpu.cuh"
#include "ops/cuda/hopper/operand.cuh"

namespace shoal::cuda::hopper {

// --- clusters: blocks that run at the same time and reach each other's shared memory

// Launches a kernel that says itself how many blocks a cluster has.
template <typename... Params, typename... Args>
void launch_clusters([[maybe_unused]] unsigned cluster, void (*kernel)(Params...), dim3 grid, dim3 block,
                     std::size_t shared, cudaStream_t stream, const Args&... args) {
  launch(kernel, grid, block, shared, stream, args...);
}
__device__ inline std::uint32_t rank_in_cluster() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// --- barriers in shared memory. A phase ends when all have arrived and all bytes that are expected have
// come.

__device__ inline void make_barrier(SharedAddress barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes new barriers visible to the cluster and to copies, before a cluster_barrier().
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive_and_expect(SharedAddress barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives at the barrier at the same place in the block `rank` of the cluster.
__device__ inline void arrive_at(SharedAddress barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Waits for the end of the phase of this parity: 0 for the first.
__device__ inline void wait(SharedAddress barrier, std::uint32_t parity) {
  std::uint32_t ended;
  do {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n"
        "}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!ended);
}
// A barrier of some of the block's threads; `which` is not 0.
__device__ inline void barrier_of(int which, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}

// --- copies of a tile between global and shared memory, by one thread. `column` and `row` are the tile's
// first in the matrix; what lies outside of it is zero, and is not stored.

__device__ inline void load_tile(SharedAddress to, const CUtensorMap& from, int column, int row,
                                 SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(to),
      "l"(&from), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// The same, to the same place in all blocks of the cluster whose bits are set, and to their barriers.
__device__ inline void load_tile(SharedAddress to, const CUtensorMap& from, int column, int row,
                                 SharedAddress barrier, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&from), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
__device__ inline void store_tile(const CUtensorMap& to, int column, int row, SharedAddress from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
               "r"(column), "r"(row), "r"(from)
               : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most `left` groups of this thread's stores have not been read from shared memory.
template <int left>
__device__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(left) : "memory");
}
// Orders this thread's writes to shared memory before copies and products that read them.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- registers: what some warp groups give up, others take
template <int count>
__device__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// --- products

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `left` groups are unfinished.
template <int left>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

// Keeps the compiler from using sums before this.
template <int count>
__device__ void hold(float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// c f32 [64, 128] = or += a bf16 [64, 16] . b bf16 [16, 128], by four warps: warp w has rows 16 w to 16 w +
// 15, and c[4 j] to c[4 j + 3] are the fragment of columns 8 j to 8 j + 7 (ops/cuda/gpu.cuh). b is stored
// [128, 16], or [16, 128] with transposed_b.
template <bool transposed_b>
__device__ void multiply(float (&c)[64], std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, 0, %67;\n"
      "}"
#define SHOAL_FOUR(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SHOAL_SIXTEEN(i) SHOAL_FOUR(i), SHOAL_FOUR(i + 4), SHOAL_FOUR(i + 8), SHOAL_FOUR(i + 12)
      : SHOAL_SIXTEEN(0), SHOAL_SIXTEEN(16), SHOAL_SIXTEEN(32), SHOAL_SIXTEEN(48)
#undef SHOAL_SIXTEEN
#undef SHOAL_FOUR
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(transposed_b)));
}

// Four 8 x 8 matrices of bfloat16; the opposite of load_matrices.
__device__ inline void store_matrices(SharedAddress row, const std::uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

}  // namespace shoal::cuda::hopper
