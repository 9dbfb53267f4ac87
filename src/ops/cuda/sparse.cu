// The largest numbers of blocks, and sums of them.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/elementwise.cuh"
#include "ops/sparse.h"

namespace shoal::cuda {
namespace {

constexpr int kBlock = static_cast<int>(kSparseBlock), kThreads = 256;

// Sorts a block (a bitonic network, Batcher 1968): that is little beside the exchange.
__global__ void take_kernel(std::int32_t* taken, float* x, int count) {
  __shared__ std::uint64_t order[kBlock];
  float* from = x + static_cast<std::int64_t>(blockIdx.x) * kBlock;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBlock; i += kThreads)
    order[i] = taking_order(static_cast<std::uint32_t>(i), from[i]);
  __syncthreads();
  for (int length = 2; length <= kBlock; length *= 2) {
    for (int apart = length / 2; apart > 0; apart /= 2) {
      for (int i = thread; i < kBlock; i += kThreads) {
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
  for (int k = thread; k < count; k += kThreads) {
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

}  // namespace

void CudaBackend::take_largest(const Tensor& taken, const Tensor& x) {
  launch(take_kernel, blocks(taken.rows()), kThreads, 0, stream_.get(), taken.as<std::int32_t>(),
         x.as<float>(), static_cast<int>(taken.columns()));
}

void CudaBackend::add_taken(const Tensor& x, const Tensor& taken, float factor) {
  for_elements<1>(taken.count(), true,
                  AddTaken{x.as<float>(), taken.as<std::int32_t>(), taken.columns(), factor}, stream_.get());
}

}  // namespace shoal::cuda
