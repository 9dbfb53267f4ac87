// The largest numbers of blocks, and sums of them.
#include <algorithm>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/elementwise.cuh"
#include "ops/sparse.h"

namespace shoal::cuda {
namespace {

constexpr int kBlock = static_cast<int>(kSparseBlock), kSparseThreads = 256;

// Sorts a block (a bitonic network, Batcher 1968): that is little beside the exchange.
__global__ void take_kernel(std::int32_t* taken, float* x, int count) {
  __shared__ std::uint64_t order[kBlock];
  float* from = x + static_cast<std::int64_t>(blockIdx.x) * kBlock;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBlock; i += kSparseThreads)
    order[i] = taking_order(static_cast<std::uint32_t>(i), from[i]);
  __syncthreads();
  for (int length = 2; length <= kBlock; length *= 2) {
    for (int apart = length / 2; apart > 0; apart /= 2) {
      for (int i = thread; i < kBlock; i += kSparseThreads) {
        const int other = i ^ apart;
        if (other > i && (order[i] > order[other]) == ((i & length) == 0)) {
          const std::uint64_t kept = order[i];
          order[i] = order[other];
          order[other] = kept;
        }
      }
      __syncthreads();
    }
  }
  for (int k = thread; k < count; k += kSparseThreads) {
    const auto at = static_cast<std::uint32_t>(order[k]);
    const bfloat16 value = round_to_bfloat16(from[at]);
    taken[static_cast<std::int64_t>(blockIdx.x) * count + k] = pack_taken(at, value);
    from[at] -= widen(value);
  }
}

struct AddTaken {
  float* x;
  const std::int32_t* taken;
  std::int64_t count;
  float factor;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    float* to = x + i / count * kSparseBlock + position_of(taken[i]);
    *to = fmaf(factor, widen(value_of(taken[i])), *to);
  }
};

// A thread for each word of levels.
constexpr int kInt4Threads = kBlock / 8;

__global__ void take_int4_kernel(std::int32_t* packed, float* x) {
  __shared__ std::uint32_t largest[kInt4Threads];
  const int thread = static_cast<int>(threadIdx.x);
  float* from = x + static_cast<std::int64_t>(blockIdx.x) * kBlock + 8 * thread;
  std::int32_t* to = packed + static_cast<std::int64_t>(blockIdx.x) * kInt4Words;
  std::uint32_t most = 0;
  for (int i = 0; i < 8; ++i) most = std::max(most, magnitude_bits(from[i]));
  largest[thread] = most;
  __syncthreads();
  for (int half = kInt4Threads / 2; half > 0; half /= 2) {
    if (thread < half) largest[thread] = std::max(largest[thread], largest[thread + half]);
    __syncthreads();
  }
  const float scale = int4_scale(largest[0]);
  std::uint32_t nibbles = 0;
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t nibble = int4_nibble(from[i], scale);
    nibbles |= nibble << 4 * i;
    from[i] -= int4_value(nibble, scale);
  }
  if (thread == 0) to[0] = std::bit_cast<std::int32_t>(scale);
  to[1 + thread] = std::bit_cast<std::int32_t>(nibbles);
}

struct AddInt4 {
  float* x;
  const std::int32_t* packed;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    const std::int32_t* block = packed + i / kSparseBlock * kInt4Words;
    const std::int64_t at = i % kSparseBlock;
    const auto nibbles = std::bit_cast<std::uint32_t>(block[1 + at / 8]);
    x[i] += int4_value(nibbles >> 4 * (at % 8) & 15u, std::bit_cast<float>(block[0]));
  }
};

}  // namespace

void CudaBackend::take_largest(const Tensor& taken, const Tensor& x) {
  launch(take_kernel, blocks(taken.rows()), kSparseThreads, 0, stream_.get(), taken.as<std::int32_t>(),
         x.as<float>(), static_cast<int>(taken.columns()));
}

void CudaBackend::add_taken(const Tensor& x, const Tensor& taken, float factor) {
  for_elements<1>(taken.count(), true,
                  AddTaken{x.as<float>(), taken.as<std::int32_t>(), taken.columns(), factor}, stream_.get());
}

void CudaBackend::take_int4(const Tensor& packed, const Tensor& x) {
  launch(take_int4_kernel, blocks(packed.rows()), kInt4Threads, 0, stream_.get(), packed.as<std::int32_t>(),
         x.as<float>());
}

void CudaBackend::add_int4(const Tensor& x, const Tensor& packed) {
  for_elements<1>(x.count(), true, AddInt4{x.as<float>(), packed.as<std::int32_t>()}, stream_.get());
}

}  // namespace shoal::cuda
