// Stands in for src/ops/cuda/gpu.cuh where there is no GPU: the same kernels, compiled as C++, run on the CPU
// one block after the other, with threads as fibers. This tests a kernel's arithmetic, indices and barriers;
// races show in the bits of another order of threads (block.h), or are found by accesses (races.h). It says
// nothing about speed.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "core/dtype.h"
#include "ops/cuda/check.h"
#include "ops/cuda/emulated/block.h"
#include "ops/cuda/launch.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

namespace shoal::cuda {

using emulated::blockDim;
using emulated::blockIdx;
using emulated::gridDim;
using emulated::threadIdx;
using std::isfinite;
using std::isnan;

inline constexpr int kWarp = emulated::kWarp;

inline void __syncthreads() { emulated::block_barrier(); }

template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
            const Args&... args) {
  const void* address = reinterpret_cast<const void*>(kernel);
  if (!prepare_launch(address, grid, shared)) return;
  emulated::launch({address, grid, block, shared}, stream, [=] { kernel(static_cast<Params>(args)...); });
  check(cudaGetLastError());
}

// Each kernel ends before the next one starts.
template <typename... Params, typename... Args>
void launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, cudaStream_t stream,
                  const Args&... args) {
  launch(kernel, grid, block, 0, stream, args...);
}
inline void let_next_start() {}
inline void wait_for_earlier() {}
// The line is there, but this is no read: others may write it.
__attribute__((noinline, no_sanitize_thread)) inline void prefetch(const void* line) {
  static_cast<void>(*static_cast<const volatile char*>(line));
}
inline constexpr int kLine = 128;

template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(emulated::dynamic_shared());
}

inline bfloat16 round_to_bfloat16(float x) { return to_bfloat16(x); }
inline std::uint32_t pack_bfloat16(float first, float second) {
  return to_bfloat16(first).bits | static_cast<std::uint32_t>(to_bfloat16(second).bits) << 16;
}
[[gnu::always_inline]] inline float bfloat16_of(std::uint32_t pair, int which) {
  return std::bit_cast<float>(which == 0 ? pair << 16 : pair & 0xffff0000u);
}
inline std::uint32_t larger_bfloat16(std::uint32_t a, std::uint32_t b) {
  const auto larger = [&](int which) { return std::fmax(bfloat16_of(a, which), bfloat16_of(b, which)); };
  return pack_bfloat16(larger(0), larger(1));
}
inline float fast_exp2(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0 : y;
}
inline float fast_reciprocal(float x) { return 1 / x; }
inline float product(float a, float b) { return a * b; }
inline void store_whole(void* to, const uint4& x) { *static_cast<uint4*>(to) = x; }
inline std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(a) * b >> 32);
}

template <typename T>
T shuffle_xor(T x, int mask) {
  return emulated::exchange(x)[emulated::lane() ^ mask];
}
inline std::uint32_t ballot(bool mine) {
  const bool* all = emulated::exchange(mine);
  std::uint32_t bits = 0;
  for (int lane = 0; lane < kWarp; ++lane) bits |= std::uint32_t{all[lane]} << lane;
  return bits;
}
inline int count_bits(std::uint32_t bits) { return std::popcount(bits); }
inline std::uint32_t pick_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t digits) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  std::uint32_t picked = 0;
  for (int i = 0; i < 4; ++i) {
    picked |= static_cast<std::uint32_t>(both >> (8 * (digits >> (4 * i) & 7u)) & 0xffu) << (8 * i);
  }
  return picked;
}
inline int lowest_bit(std::uint32_t bits) { return std::countr_zero(bits); }

using SharedAddress = std::uint32_t;
inline SharedAddress shared_address(const void* in_shared) {
  return static_cast<SharedAddress>(static_cast<const char*>(in_shared) -
                                    static_cast<char*>(emulated::dynamic_shared()));
}
inline void* shared_pointer(SharedAddress address) {
  return static_cast<char*>(emulated::dynamic_shared()) + address;
}

inline void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  const auto* rows = emulated::exchange(shared_pointer(row));
  const int lane = emulated::lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto* from = static_cast<const std::uint32_t*>(rows[8 * matrix + lane / 4]);
    to[matrix] = from[lane % 4];
  }
}
inline void load_matrices_transposed(std::uint32_t (&to)[4], SharedAddress row) {
  const auto* rows = emulated::exchange(shared_pointer(row));
  const int lane = emulated::lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto at = [&](int r) {
      return std::uint32_t{static_cast<const std::uint16_t*>(rows[8 * matrix + r])[lane / 4]};
    };
    to[matrix] = at(2 * (lane % 4)) | at(2 * (lane % 4) + 1) << 16;
  }
}
// Operands are in the emulated GPU's own memory, so reads of them are no races.
__attribute__((noinline, no_sanitize_thread)) inline void multiply_add(float (&c)[4],
                                                                       const std::uint32_t (&a)[4],
                                                                       std::uint32_t b0, std::uint32_t b1) {
  struct Operands {
    std::uint32_t a[4], b[2];
  };
  const Operands* all = emulated::exchange(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int g = emulated::lane() / 4, t = emulated::lane() % 4;
  for (int pair = 0; pair < 8; ++pair) {
    const Operands &row = all[4 * g + pair % 4], &column = all[8 * t + pair % 4],
                   &next = all[8 * t + 4 + pair % 4];
    for (int k = 0; k < 2; ++k) {
      for (int e = 0; e < 4; ++e) {
        c[e] += bfloat16_of(row.a[pair / 4 * 2 + e / 2], k) *
                bfloat16_of((e % 2 == 0 ? column : next).b[pair / 4], k);
      }
    }
  }
}

// Asynchronous copies run as late as possible, or at once where the order is drawn.
inline void copy_async(SharedAddress address, const void* from, bool there) {
  void* to = shared_pointer(address);
  // It may be written at any time from now on.
  if (emulated::notes_accesses)
    emulated::note_access(to, 16, emulated::Access::write, __builtin_return_address(0));
  emulated::later([=] { there ? std::memcpy(to, from, 16) : std::memset(to, 0, 16); });
}
inline void commit_copies() { emulated::commit(); }
template <int left>
void wait_for_copies() {
  emulated::wait_until_left(left);
}

}  // namespace shoal::cuda
