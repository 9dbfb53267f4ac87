// The primitives of a GPU: launches, exchange between threads, tensor cores. Kernels use these and no others,
// so that tests/ops/cuda/emulated can replace this header on machines without a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "core/dtype.h"
#include "ops/cuda/check.h"
#include "ops/cuda/launch.h"

namespace shoal::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
            const Args&... args) {
  if (!prepare_launch(reinterpret_cast<const void*>(kernel), grid, shared)) return;
  kernel<<<grid, block, shared, stream>>>(static_cast<Params>(args)...);
  check(cudaGetLastError());
}

// --- programmatic dependent launch: from Hopper on, a short kernel that is launched early may start before
// the kernel in front of it has finished, as soon as all of that one's blocks have called let_next_start() or
// ended. It calls wait_for_earlier() before it reads or writes what another kernel may write or read; then
// the earlier kernels have finished.
template <typename... Params, typename... Args>
void launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, cudaStream_t stream,
                  const Args&... args) {
  if (!prepare_launch(reinterpret_cast<const void*>(kernel), grid, 0)) return;
  // Code for GPUs before Hopper, which later ones can run too, has no wait in it; older drivers have graphs
  // without such edges.
  static const bool may_start_early = [&] {
    cudaFuncAttributes code{};
    int driver = 0;
    check(cudaFuncGetAttributes(&code, kernel));
    check(cudaDriverGetVersion(&driver));
    return CUDART_VERSION >= 12030 && driver >= 12030 && code.ptxVersion >= 90;
  }();
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = may_start_early ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Brings a line of global memory nearer, without reading it: it may still change.
__device__ inline void prefetch(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(line)));
}
inline constexpr int kLine = 128;  // bytes

// The block's dynamic shared memory.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

__device__ inline bfloat16 round_to_bfloat16(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
// Two of them in a register, the first in the lower half.
__device__ inline std::uint32_t pack_bfloat16(float first, float second) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
// The larger numbers of two such pairs; of a number and a NaN, the number.
__device__ inline std::uint32_t larger_bfloat16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// 2^x to 2 ulp; results below the smallest normal number are zero.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x to 1 ulp; zero for x above 2^126.
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// a * b, rounded before it is added to anything: kernels with the same arithmetic in other surroundings give
// the same bits.
__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }

// Stores 16 bytes of global memory at once, also where a compiler would split an assignment.
__device__ inline void store_whole(void* to, const uint4& x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ inline std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) { return __umulhi(a, b); }

template <typename T>
__device__ T shuffle_xor(T x, int mask) {
  return __shfl_xor_sync(kAllLanes, x, mask);
}
// Bit l is the predicate of lane l.
__device__ inline std::uint32_t ballot(bool mine) { return __ballot_sync(kAllLanes, mine); }
__device__ inline int count_bits(std::uint32_t bits) { return __popc(bits); }
// Byte i of the result is byte s of a and b, four bytes each, where s is digit i of the hexadecimal number.
__device__ inline std::uint32_t pick_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t digits) {
  return __byte_perm(a, b, digits);
}
// The number of the lowest bit that is set.
__device__ inline int lowest_bit(std::uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }

// --- tensor cores. In the fragments of a 16 x 8 tile, lane = 4 g + t has of rows g and g + 8 the columns
// 2 t and 2 t + 1.

// An offset in the block's shared memory, in bytes.
using SharedAddress = std::uint32_t;
__device__ inline SharedAddress shared_address(const void* in_shared) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(in_shared));
}

// Four 8 x 8 matrices of bfloat16; lane l gives the address of row l % 8 of matrix l / 8, and gets of each
// matrix the elements (l / 4; 2 (l % 4), + 1).
__device__ inline void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
// The same, each matrix transposed: elements (2 (l % 4), + 1; l / 4).
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
// c f32 [16, 8] += a bf16 [16, 16] . b bf16 [16, 8]
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies 16 bytes from global to shared memory while the thread goes on; zeros when `there` is false.
__device__ inline void copy_async(SharedAddress to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
// Closes a group of this thread's copies so far; waiting leaves at most `left` groups unfinished. A barrier
// makes the other threads' copies visible.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

}  // namespace shoal::cuda
