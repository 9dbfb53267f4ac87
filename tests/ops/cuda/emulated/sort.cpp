// Stands in for CUB's sort.
#include "ops/cuda/sort.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/cuda/emulated/stream.h"

namespace shoal::cuda {

std::size_t sort_room(const SortPairs& pairs) { return 8 * std::size_t{pairs.count}; }

// Overwrites the temporary memory, as the real one does.
void sort_pairs(const SortPairs& pairs, void* room, cudaStream_t stream) {
  emulated::queue(stream, [=] {
    std::memset(room, 0xff, sort_room(pairs));
    const std::uint64_t lower = (std::uint64_t{1} << pairs.bits) - 1;
    std::vector<std::uint32_t> order(pairs.count);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return (pairs.keys[a] & lower) < (pairs.keys[b] & lower);
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
      pairs.sorted_keys[i] = pairs.keys[order[i]];
      pairs.sorted_values[i] = pairs.values[order[i]];
    }
  });
}

}  // namespace shoal::cuda
