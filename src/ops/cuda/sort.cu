// The sort of CUB, which comes with CUDA's toolkit. Nothing else includes its headers: they take long to
// compile, and the emulated GPU (tests/ops/cuda/emulated) has a sort of its own.
#include "ops/cuda/sort.h"

#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/check.h"

namespace shoal::cuda {
namespace {

// Without memory, CUB only says how much it needs.
std::size_t run(const SortPairs& pairs, void* room, std::size_t bytes, cudaStream_t stream) {
  check(cub::DeviceRadixSort::SortPairs(room, bytes, pairs.keys, pairs.sorted_keys, pairs.values,
                                        pairs.sorted_values, pairs.count, 0, pairs.bits, stream));
  return bytes;
}

}  // namespace

std::size_t sort_room(const SortPairs& pairs) { return run(pairs, nullptr, 0, nullptr); }

void sort_pairs(const SortPairs& pairs, void* room, cudaStream_t stream) {
  run(pairs, room, sort_room(pairs), stream);
}

}  // namespace shoal::cuda
