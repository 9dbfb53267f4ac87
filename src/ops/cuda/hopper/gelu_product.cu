// Products with GELU or its slope for GPUs of compute capability 9. Four warps load, and two groups of four
// warps compute a tile each: while one applies GELU and stores, the other multiplies. Two blocks, one above
// the other, form a cluster and load half of b each for both.
#include "ops/cuda/gelu_product.h"

#include <algorithm>
#include <type_traits>

#include "ops/cuda/gelu.cuh"
#include "ops/cuda/hopper/hopper.cuh"
#include "ops/cuda/hopper/tensor_map.h"
#include "ops/cuda/reductions.cuh"

namespace shoal::cuda {
namespace {

using namespace hopper;

constexpr int kTile = 128;         // rows and columns of a tile
constexpr int kPanel = 64;         // numbers in 128 bytes, which is what the copies swizzle
constexpr int kCluster = 2;        // blocks
constexpr int kGroup = 4 * kWarp;  // threads of a group
constexpr int kGroups = 2;         // that compute
constexpr int kThreads = (1 + kGroups) * kGroup;
constexpr int kLoadRegisters = 24, kRegisters = 240;  // of a thread that loads or computes
constexpr int kHalf = kTile / 2;                      // the rows that a product of hopper.cuh has

// 128 rows of 128 bytes.
using Panel = unsigned char[kTile * kPanel * sizeof(bfloat16)];
constexpr int kPanelBytes = sizeof(Panel);

// In shared memory.
struct Stage {
  Panel a, b;  // kPanel deep
};
template <bool backward>
struct alignas(1024) Room {
  static constexpr int kStages = backward ? 5 : 4;  // that are loaded ahead
  Stage stages[kStages];
  Panel results[kGroups][backward ? 2 : 3];  // on the way to or from global memory
  std::uint64_t full[kStages], empty[kStages], turns[kGroups], aux[kGroups];
};

struct Maps {
  CUtensorMap a, b, c, aux;
};

// The tiles of a cluster, one after another: all columns of two tiles' rows, then the next rows.
struct Tiles {
  int across, count, depth;  // depth: stages of a tile

  __device__ int begin() const { return static_cast<int>(blockIdx.x) / kCluster; }
  __device__ int step() const { return static_cast<int>(gridDim.x) / kCluster; }
  __device__ int column(int tile) const { return tile % across * kTile; }
  __device__ int row(int tile) const {
    return (tile / across * kCluster + static_cast<int>(rank_in_cluster())) * kTile;
  }
};

// The place in the ring of stages.
template <bool backward>
struct Place {
  static constexpr int kStages = Room<backward>::kStages;

  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance(int by) {
    stage += by;
    parity ^= static_cast<std::uint32_t>(stage / kStages) & 1;
    stage %= kStages;
  }
};

template <bool backward>
__device__ void load_stages(Room<backward>& room, const Maps& maps, const Tiles& tiles) {
  const auto rank = static_cast<int>(rank_in_cluster());
  Place<backward> at;
  for (int tile = tiles.begin(); tile < tiles.count; tile += tiles.step()) {
    const int row = tiles.row(tile), column = tiles.column(tile) + rank * kPanel;
    for (int k = 0; k < tiles.depth; ++k, at.advance(1)) {
      Stage& stage = room.stages[at.stage];
      const SharedAddress full = shared_address(&room.full[at.stage]);
      wait(shared_address(&room.empty[at.stage]), at.parity ^ 1);
      arrive_and_expect(full, static_cast<int>(sizeof(Stage)));
      load_tile(shared_address(stage.a), maps.a, k * kPanel, row, full);
      const SharedAddress half = shared_address(stage.b + rank * (kPanelBytes / kCluster));
      constexpr std::uint16_t kBoth = 3;
      backward ? load_tile(half, maps.b, column, k * kPanel, full, kBoth)
               : load_tile(half, maps.b, k * kPanel, column, full, kBoth);
    }
  }
}

// sums [128, 128] of a tile; meanwhile() is called while the last products go on. `next` is the barrier of
// the group whose tile follows: a barrier's parity says which of two rounds it is in, so no group waits for a
// stage before the other has seen the rounds before.
template <bool backward, typename Meanwhile>
__device__ void multiply_tile(float (&sums)[2][kHalf], Room<backward>& room, Place<backward> at, int depth,
                              SharedAddress next, const Meanwhile& meanwhile) {
  constexpr int kRows8 = 8 * 128;                            // bytes
  constexpr int kStepB = (backward ? 2 * kRows8 : 32) >> 4;  // 16 of k
  const bool leads = threadIdx.x % kWarp == 0;
  const auto release = [&](int stage) {
    if (!leads) return;
    for (std::uint32_t rank = 0; rank < kCluster; ++rank) arrive_at(shared_address(&room.empty[stage]), rank);
  };
  int before = 0;
  for (int k = 0; k < depth; ++k, at.advance(1)) {
    const Stage& stage = room.stages[at.stage];
    const std::uint64_t a = operand(shared_address(stage.a), kRows8, 16),
                        b = operand(shared_address(stage.b), kRows8, backward ? kPanelBytes / 2 : 16);
    wait(shared_address(&room.full[at.stage]), at.parity);
    begin_products();
#pragma unroll
    for (int i = 0; i < kPanel / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply<backward>(sums[half], a + (half * (kPanelBytes / 2) + 32 * i) / 16, b + kStepB * i,
                           k + i > 0);
      }
    }
    commit_products();
    if (k + 1 == depth && leads) arrive(next);
    wait_for_products<1>();
    if (k > 0) release(before);
    before = at.stage;
  }
  meanwhile();
  wait_for_products<0>();
  hold(sums[0]);
  hold(sums[1]);
  release(before);
}

// Row and chunk of 16 bytes in a panel.
__device__ SharedAddress in_panel(const unsigned char* panel, int row, int chunk) {
  return shared_address(panel) + static_cast<SharedAddress>(row * 128 + (chunk ^ row % 8) * 16);
}

// A tile in pairs of bfloat16: of rows 64 half + 16 warp + g (+ 8) the columns 8 j + 2 t (+ 1) are
// words[half][2 j (+ 1)] of the lane 4 g + t.
using Words = std::uint32_t[2][2 * kTile / 8];

// Calls work(words, address) for a panel's fragments of 16 x 16, four words each.
template <typename Work>
__device__ void for_fragments(Words& words, int which, const Panel& panel, const Work& work) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) % kGroup / kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < kPanel / 8; j += 2) {
      auto& four = *reinterpret_cast<std::uint32_t(*)[4]>(words[half] + 2 * (which * (kPanel / 8) + j));
      work(four, in_panel(panel, kHalf * half + 16 * warp + lane % 16, j + lane / 16));
    }
  }
}
__device__ void read(Words& words, int which, const Panel& panel) {
  for_fragments(words, which, panel,
                [](std::uint32_t(&four)[4], SharedAddress at) { load_matrices(four, at); });
}
__device__ void write(Words& words, int which, const Panel& panel) {
  for_fragments(words, which, panel,
                [](std::uint32_t(&four)[4], SharedAddress at) { store_matrices(at, four); });
}
// A barrier of the group, after which its earlier stores have read their panels.
__device__ void group_barrier(int group) {
  if (threadIdx.x % kGroup == 0) wait_for_stores<0>();
  barrier_of(1 + group, kGroup);
}
// One thread stores panels that all have written. Earlier stores have read their panels then.
template <typename Store>
__device__ void send(int group, const Store& store) {
  publish_shared();
  group_barrier(group);
  if (threadIdx.x % kGroup != 0) return;
  store();
  commit_stores();
}

// The bias of a lane's columns, in pairs.
using Bias = std::uint32_t[kTile / 8];
__device__ void load(Bias& pairs, const bfloat16* bias, int column, int columns) {
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    const int at = column + 8 * j + 2 * (static_cast<int>(threadIdx.x) % 4);
    pairs[j] = bias && at < columns ? *reinterpret_cast<const std::uint32_t*>(bias + at) : 0;
  }
}

// aux = sums + bias, c = GELU(aux)
template <Gelu kind>
__device__ void finish_forward(const float (&sums)[2][kHalf], const Bias& bias, Panel (&panels)[3],
                               const Maps& maps, int row, int column, int group) {
  Words words;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2 * kTile / 8; ++i) {
      const float* x = sums[half] + 2 * i;
      words[half][i] = pack_bfloat16(x[0] + widen_low(bias[i / 2]), x[1] + widen_high(bias[i / 2]));
    }
  }
  group_barrier(group);
  for (int i = 0; i < 2; ++i) write(words, i, panels[i]);
  send(group, [&] {
    for (int i = 0; i < 2; ++i) store_tile(maps.aux, column + i * kPanel, row, shared_address(panels[i]));
  });
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Panel& panel = panels[i == 0 ? 2 : 0];
    for_fragments(words, i, panel, [](std::uint32_t(&four)[4], SharedAddress at) {
#pragma unroll
      for (auto& pair : four)
        pair = pack_bfloat16(gelu<kind>(widen_low(pair)).y, gelu<kind>(widen_high(pair)).y);
      store_matrices(at, four);
    });
    send(group, [&] { store_tile(maps.c, column + i * kPanel, row, shared_address(panel)); });
  }
}

// Adds the lanes' sums of columns, two per chunk of 8 columns, over the warp's rows, and stores them at `to`.
template <int bit>
__device__ void exchange(float (&sums)[2 * kTile / 8], int& chunk) {  // lanes give away half of 2 bit sums
  const bool upper = threadIdx.x & bit;
#pragma unroll
  for (int i = 0; i < bit; ++i) {
    const float given = upper ? sums[i] : sums[bit + i], kept = upper ? sums[bit + i] : sums[i];
    sums[i] = kept + shuffle_xor(given, bit);
  }
  chunk += upper ? bit / 2 : 0;
}
__device__ void store_column_sums(float (&sums)[2 * kTile / 8], float* to, int columns) {
  int chunk = 0;
  exchange<16>(sums, chunk);
  exchange<8>(sums, chunk);
  exchange<4>(sums, chunk);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = 8 * (chunk + i) + 2 * (static_cast<int>(threadIdx.x) % 4);
    if (at < columns) *reinterpret_cast<float2*>(to + at) = {sums[2 * i], sums[2 * i + 1]};
  }
}

// c = sums * GELU'(aux), where aux is in the panels. `parts`, which may be null, gets the sums of columns
// over each warp's rows.
template <Gelu kind>
__device__ void finish_backward(const float (&sums)[2][kHalf], Panel (&panels)[2], const Maps& maps,
                                float* parts, int columns, int row, int column, int group) {
  Words words;
  for (int i = 0; i < 2; ++i) read(words, i, panels[i]);
  float of_columns[2 * kTile / 8];
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    float first = 0, second = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int half = part / 2, i = 2 * j + part % 2;
      auto& pair = words[half][i];
      const float x = sums[half][2 * i] * gelu<kind>(widen_low(pair)).slope,
                  y = sums[half][2 * i + 1] * gelu<kind>(widen_high(pair)).slope;
      pair = pack_bfloat16(x, y);
      first += x;
      second += y;
    }
    of_columns[2 * j] = first;
    of_columns[2 * j + 1] = second;
  }
  for (int i = 0; i < 2; ++i) write(words, i, panels[i]);
  send(group, [&] {
    for (int i = 0; i < 2; ++i) store_tile(maps.c, column + i * kPanel, row, shared_address(panels[i]));
  });
  if (!parts) return;
  const int part = row / kTile * (kGroup / kWarp) + static_cast<int>(threadIdx.x) % kGroup / kWarp;
  store_column_sums(of_columns, parts + static_cast<std::int64_t>(part) * columns + column, columns - column);
}

struct Vectors {
  const bfloat16* bias;  // forward
  float* parts;          // backward
  int columns;
};

template <Gelu kind, bool backward>
__device__ void compute(Room<backward>& room, const Maps& maps, const Tiles& tiles, const Vectors& vectors,
                        int group) {
  const bool leads = threadIdx.x % kGroup == 0;
  auto& panels = room.results[group];
  const SharedAddress aux = shared_address(&room.aux[group]),
                      next = shared_address(&room.turns[(group + 1) % kGroups]);
  std::uint32_t parity = 0;  // of the barriers that have a phase for each tile
  Place<backward> at;
  at.advance(group * tiles.depth);
  for (int tile = tiles.begin() + group * tiles.step(); tile < tiles.count; tile += kGroups * tiles.step()) {
    const int row = tiles.row(tile), column = tiles.column(tile);
    if (backward && leads) {
      wait_for_stores<0>();
      arrive_and_expect(aux, 2 * kPanelBytes);
      for (int i = 0; i < 2; ++i) {
        load_tile(shared_address(panels[i]), maps.aux, column + i * kPanel, row, aux);
      }
    }
    float sums[2][kHalf];
    Bias bias;
    wait(shared_address(&room.turns[group]), parity ^ static_cast<std::uint32_t>(group == 0));
    multiply_tile(sums, room, at, tiles.depth, next, [&] {
      if (!backward) load(bias, vectors.bias, column, vectors.columns);
    });
    at.advance(kGroups * tiles.depth);
    if constexpr (backward) {
      wait(aux, parity);
      finish_backward<kind>(sums, panels, maps, vectors.parts, vectors.columns, row, column, group);
    } else {
      finish_forward<kind>(sums, bias, panels, maps, row, column, group);
    }
    parity ^= 1;
  }
  if (leads) wait_for_stores<0>();
}

template <Gelu kind, bool backward>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    gelu_product_kernel(const __grid_constant__ Maps maps, Tiles tiles, Vectors vectors) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  auto* memory = dynamic_shared<unsigned char>();
  using OwnRoom = Room<backward>;
  auto& room = *reinterpret_cast<OwnRoom*>(memory + (-shared_address(memory) & (alignof(OwnRoom) - 1)));
  if (threadIdx.x == 0) {
    for (int i = 0; i < OwnRoom::kStages; ++i) {
      make_barrier(shared_address(&room.full[i]), 1);
      make_barrier(shared_address(&room.empty[i]), kCluster * kGroup / kWarp);
    }
    for (int i = 0; i < kGroups; ++i) {
      make_barrier(shared_address(&room.turns[i]), kGroup / kWarp);
      make_barrier(shared_address(&room.aux[i]), 1);
    }
    publish_barriers();
  }
  cluster_barrier();
  if (threadIdx.x < kGroup) {
    keep_registers<kLoadRegisters>();
    if (threadIdx.x == 0) load_stages(room, maps, tiles);
  } else {
    take_registers<kRegisters>();
    compute<kind>(room, maps, tiles, vectors, static_cast<int>(threadIdx.x) / kGroup - 1);
  }
  cluster_barrier();  // the other block may still arrive here
#endif
}

// With fewer rows, tiles would be mostly empty.
constexpr std::int64_t kFewestRows = 1024;

bool fits(const Product& product) {
  const auto copied = [](const Tensor& x) {
    return x.dtype == DType::bf16 && x.columns() % 8 == 0 &&
           reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
  };
  const bool backward = product.epilogue == Epilogue::gelu_slope;
  return product.c.rows() >= kFewestRows && copied(product.a) && copied(product.b) && copied(product.c) &&
         copied(product.aux) && !product.transpose_a && product.transpose_b != backward &&
         !product.accumulate && reinterpret_cast<std::uintptr_t>(product.bias.data) % 4 == 0 &&
         (!product.bias || product.bias.dtype == DType::bf16);
}

}  // namespace

bool has_gelu_product() { return gpu_attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

bool gelu_product(const Product& product, Gelu kind, KernelScratch& scratch, cudaStream_t stream) {
  if (!fits(product) || !has_gelu_product()) return false;
  const bool backward = product.epilogue == Epilogue::gelu_slope;
  const auto rows = product.c.rows(), columns = product.c.columns();
  const auto map = [](const Tensor& matrix, int tile) { return make_tensor_map(matrix, kPanel, tile); };
  const Maps maps{map(product.a, kTile), map(product.b, kTile / kCluster), map(product.c, kTile),
                  map(product.aux, kTile)};
  const auto across = ceil_div(columns, kTile), down = ceil_div(rows, kTile * kCluster);
  const auto parts = down * kCluster * (kGroup / kWarp);  // of the column sums
  const Tiles tiles{static_cast<int>(across), static_cast<int>(across * down),
                    static_cast<int>(ceil_div(product.a.columns(), kPanel))};
  const Vectors vectors{product.bias.as<bfloat16>(),
                        product.sums ? scratch.take<float>(parts * columns) : nullptr,
                        static_cast<int>(columns)};
  const auto clusters =
      std::clamp<std::int64_t>(gpu_attribute(cudaDevAttrMultiProcessorCount) / kCluster, 1, tiles.count);
  const auto run = [&]<bool back>(auto kernel, std::bool_constant<back>) {
    launch_clusters(kCluster, kernel, blocks(clusters * kCluster), kThreads,
                    sizeof(Room<back>) + alignof(Room<back>), stream, maps, tiles, vectors);
  };
  if (kind == Gelu::tanh) {
    backward ? run(gelu_product_kernel<Gelu::tanh, true>, std::true_type{})
             : run(gelu_product_kernel<Gelu::tanh, false>, std::false_type{});
  } else {
    backward ? run(gelu_product_kernel<Gelu::erf, true>, std::true_type{})
             : run(gelu_product_kernel<Gelu::erf, false>, std::false_type{});
  }
  if (product.sums) {
    fold_parts(product.sums, {}, {}, vectors.parts, parts, columns, stream);
  }
  return true;
}

}  // namespace shoal::cuda
