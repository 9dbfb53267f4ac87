#include "comm/nccl/add_parts.h"

#include <algorithm>

namespace shoal::nccl {
namespace {

// Takes plain parameters, which the emulation in tests/comm/nccl unpacks.
__global__ void add_parts_kernel(bfloat16* out, const bfloat16* own, const bfloat16* others, int rank,
                                 int ranks, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const auto of = [&](int r) {
      return to_float(r == rank ? own[i] : others[(r < rank ? r : r - 1) * count + i]);
    };
    float sum = of(0);
    for (int r = 1; r < ranks; ++r) sum += of(r);
    out[i] = to_bfloat16(sum);
  }
}

}  // namespace

cudaError_t add_parts(bfloat16* out, const PartsOfRanks& parts, cudaStream_t stream) {
  constexpr unsigned kThreads = 256, kMostBlocks = 1024;
  auto [own, others, rank, ranks, count] = parts;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, kMostBlocks));
  if (blocks == 0) return cudaSuccess;
  void* arguments[] = {&out, &own, &others, &rank, &ranks, &count};
  return cudaLaunchKernel(reinterpret_cast<const void*>(add_parts_kernel), dim3(blocks), dim3(kThreads),
                          arguments, 0, stream);
}

}  // namespace shoal::nccl
