// Stands in for src/ops/cuda/hopper/hopper.cuh. Products are complete at once; a copy to global memory
// happens when it is waited for, or at once where the order is drawn. A barrier with more arrivals than it
// has room for is a failure.
#pragma once

#include <cuda.h>

#include <stdexcept>

#include "ops/cuda/emulated/tensor_map.h"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/hopper/operand.cuh"

#undef __cluster_dims__
#undef __grid_constant__
#define __cluster_dims__(...)
#define __grid_constant__
#define __CUDA_ARCH_FEAT_SM90_ALL

namespace shoal::cuda::hopper {

template <typename... Params, typename... Args>
void launch_clusters(unsigned cluster, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared,
                     cudaStream_t stream, const Args&... args) {
  const void* address = reinterpret_cast<const void*>(kernel);
  if (!prepare_launch(address, grid, shared)) return;
  emulated::launch({address, grid, block, shared, cluster}, stream,
                   [=] { kernel(static_cast<Params>(args)...); });
  check(cudaGetLastError());
}

inline std::uint32_t rank_in_cluster() { return static_cast<std::uint32_t>(emulated::rank_in_cluster()); }
inline void cluster_barrier() { emulated::cluster_barrier(); }

struct PhaseBarrier {
  std::int32_t bytes;  // that are still to come
  std::uint8_t arrivals, missing, phase, unused;

  void check() {
    if (missing > 0 || bytes != 0) return;
    missing = arrivals;
    ++phase;
  }
  void arrive() {
    if (missing == 0) throw std::logic_error("more threads arrive at a barrier than its phase has");
    --missing;
    check();
  }
};
static_assert(sizeof(PhaseBarrier) == 8);

inline PhaseBarrier& barrier_at(SharedAddress at, std::uint32_t rank = rank_in_cluster()) {
  return *reinterpret_cast<PhaseBarrier*>(static_cast<char*>(emulated::shared_of(static_cast<int>(rank))) +
                                          at);
}
inline void make_barrier(SharedAddress barrier, int arrivals) {
  const auto count = static_cast<std::uint8_t>(arrivals);
  barrier_at(barrier) = {0, count, count, 0, 0};
}
inline void publish_barriers() {}
inline void arrive_and_expect(SharedAddress barrier, int bytes) {
  barrier_at(barrier).bytes += bytes;
  barrier_at(barrier).arrive();
}
inline void arrive(SharedAddress barrier) { barrier_at(barrier).arrive(); }
inline void arrive_at(SharedAddress barrier, std::uint32_t rank) { barrier_at(barrier, rank).arrive(); }
inline void wait(SharedAddress barrier, std::uint32_t parity) {
  const auto& at = barrier_at(barrier);
  emulated::wait_until([&at, parity] { return (at.phase & 1u) != parity; });
}
inline void barrier_of(int which, int threads) { emulated::barrier_of(which, threads); }

// Chunks of 16 bytes are exchanged by the row of 128 bytes that they are in.
inline std::size_t swizzled(std::size_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

// Calls move(tile's address, matrix's address or null outside of it) for each number.
template <typename Move>
void for_tile(const emulated::TensorMap& map, SharedAddress tile, std::uint32_t rank, int column, int row,
              const Move& move) {
  auto* shared = static_cast<char*>(emulated::shared_of(static_cast<int>(rank)));
  if (tile % 1024 != 0) throw std::logic_error("a tile is not aligned to 1024 bytes");
  for (int r = 0; r < map.tile_rows; ++r) {
    for (int c = 0; c < map.tile_columns; ++c) {
      const std::size_t offset =
          swizzled(static_cast<std::size_t>(r) * 128 + static_cast<std::size_t>(c) * 2);
      const bool inside = row + r < map.rows && column + c < map.columns;
      const std::int64_t at = std::int64_t{row + r} * map.columns + column + c;
      move(reinterpret_cast<std::uint16_t*>(shared + tile + offset), inside ? map.data + at : nullptr);
    }
  }
}
inline void load_tile(SharedAddress to, const CUtensorMap& from, int column, int row, SharedAddress barrier,
                      std::uint16_t blocks) {
  const auto& map = emulated::tensor_map(from);
  for (std::uint32_t rank = 0; rank < 16; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    for_tile(map, to, rank, column, row,
             [](std::uint16_t* tile, const std::uint16_t* matrix) { *tile = matrix ? *matrix : 0; });
    barrier_at(barrier, rank).bytes -= map.tile_rows * map.tile_columns * 2;
    barrier_at(barrier, rank).check();
  }
}
inline void load_tile(SharedAddress to, const CUtensorMap& from, int column, int row, SharedAddress barrier) {
  load_tile(to, from, column, row, barrier, static_cast<std::uint16_t>(1u << rank_in_cluster()));
}
inline void store_tile(const CUtensorMap& to, int column, int row, SharedAddress from) {
  emulated::later([=, map = emulated::tensor_map(to), rank = rank_in_cluster()] {
    for_tile(map, from, rank, column, row, [](const std::uint16_t* tile, std::uint16_t* matrix) {
      if (matrix) *matrix = *tile;
    });
  });
}
inline void commit_stores() { emulated::commit(); }
template <int left>
void wait_for_stores() {
  emulated::wait_until_left(left);
}
inline void publish_shared() {}
template <int count>
void keep_registers() {}
template <int count>
void take_registers() {}

// The lanes of a warp execute these together.
inline void begin_products() { emulated::exchange(0); }
inline void commit_products() { emulated::exchange(0); }
template <int left>
void wait_for_products() {
  emulated::exchange(0);
}
template <int count>
void hold(float (&)[count]) {}

// An operand of the product in shared memory, as its descriptor has it.
class Operand {
 public:
  explicit Operand(std::uint64_t descriptor)
      : shared_(static_cast<const char*>(emulated::dynamic_shared())),
        begin_(field(descriptor, 0)),
        block_(field(descriptor, 16)),
        rows_(field(descriptor, 32)) {}
  // The number in row `of`, at place `along` of the row.
  float at(int of, int along) const {
    const auto row = static_cast<std::size_t>(of), column = static_cast<std::size_t>(along);
    const std::size_t offset = begin_ + row / 8 * rows_ + row % 8 * 128 + column / 64 * block_ + column % 64 * 2;
    return to_float(*reinterpret_cast<const bfloat16*>(shared_ + swizzled(offset)));
  }

 private:
  static std::size_t field(std::uint64_t descriptor, int bit) {
    return static_cast<std::size_t>(descriptor >> bit & 0x3fff) << 4;
  }
  const char* shared_;
  std::size_t begin_, block_, rows_;  // block_: from 64 numbers to the next, rows_: from 8 rows to the next
};
template <bool transposed_b>
void multiply(float (&c)[64], std::uint64_t a, std::uint64_t b, bool add) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp % 4, g = emulated::lane() / 4,
            t = emulated::lane() % 4;
  const Operand left(a), right(b);
  float rows[2][16];
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) rows[half][k] = left.at(16 * warp + g + 8 * half, k);
  }
  for (int j = 0; j < 16; ++j) {
    for (int e = 0; e < 2; ++e) {
      const int n = 8 * j + 2 * t + e;
      float column[16];
      for (int k = 0; k < 16; ++k) column[k] = transposed_b ? right.at(k, n) : right.at(n, k);
      for (int half = 0; half < 2; ++half) {
        float& sum = c[4 * j + 2 * half + e];
        if (!add) sum = 0;
        for (int k = 0; k < 16; ++k) sum += rows[half][k] * column[k];
      }
    }
  }
}

inline void store_matrices(SharedAddress row, const std::uint32_t (&from)[4]) {
  const auto* rows = emulated::exchange(shared_pointer(row));
  const int lane = emulated::lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    static_cast<std::uint32_t*>(rows[8 * matrix + lane / 4])[lane % 4] = from[matrix];
  }
  emulated::exchange(0);  // all have written
}

}  // namespace shoal::cuda::hopper
