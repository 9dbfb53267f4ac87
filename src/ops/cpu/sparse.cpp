// The largest numbers of blocks, and sums of them.
#include "ops/sparse.h"

#include <algorithm>
#include <array>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {

void CpuBackend::take_largest(const Tensor& taken, const Tensor& x) {
  const std::int64_t count = taken.columns();
  for_blocks(team_, taken.rows(), 8, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::uint64_t, kSparseBlock> order;
    for (std::int64_t block = begin; block < end; ++block) {
      float* from = x.as<float>() + block * kSparseBlock;
      for (std::uint32_t i = 0; i < kSparseBlock; ++i) order[i] = taking_order(i, from[i]);
      std::partial_sort(order.begin(), order.begin() + count, order.end());
      for (std::int64_t k = 0; k < count; ++k) {
        const auto at = static_cast<std::uint32_t>(order[static_cast<std::size_t>(k)]);
        const bfloat16 value = to_bfloat16(from[at]);
        taken.as<std::int32_t>()[block * count + k] = pack_taken(at, value);
        from[at] -= to_float(value);
      }
    }
  });
}

void CpuBackend::add_taken(const Tensor& x, const Tensor& taken, float factor) {
  const std::int64_t count = taken.columns();
  for_blocks(team_, taken.rows(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * count; i < end * count; ++i) {
      const std::int32_t one = taken.as<std::int32_t>()[i];
      x.as<float>()[i / count * kSparseBlock + position_of(one)] += factor * to_float(value_of(one));
    }
  });
}

}  // namespace shoal::cpu
