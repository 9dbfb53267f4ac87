// A stable sort on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace shoal::cuda {

// Pairs of a key and a value. Keys are compared by their lower `bits` bits; pairs with equal keys keep their
// order.
struct SortPairs {
  std::uint32_t* sorted_keys;
  std::int32_t* sorted_values;
  const std::uint32_t* keys;
  const std::int32_t* values;
  std::uint32_t count;
  int bits;
};

// Bytes of temporary memory; only `count` and `bits` are read.
std::size_t sort_room(const SortPairs& pairs);
// Queues the sort. `room` has sort_room() bytes, which the stream may use until the sort has completed.
void sort_pairs(const SortPairs& pairs, void* room, cudaStream_t stream);

}  // namespace shoal::cuda
