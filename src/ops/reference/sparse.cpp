// The largest numbers of blocks, and sums of them.
#include "ops/sparse.h"

#include <algorithm>
#include <numeric>

#include "ops/reference/reference_backend.h"
#include "ops/reference/values.h"

namespace shoal {

using reference::read;
using reference::write;

void ReferenceBackend::take_largest(const Tensor& taken, const Tensor& x) {
  auto values = read(x);
  constexpr auto kBlock = static_cast<std::size_t>(kSparseBlock);
  const auto count = static_cast<std::size_t>(taken.columns());
  std::vector<std::size_t> order(kBlock);
  for (std::size_t block = 0; block < static_cast<std::size_t>(taken.rows()); ++block) {
    double* from = values.data() + block * kBlock;
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return std::abs(from[a]) > std::abs(from[b]); });
    for (std::size_t k = 0; k < count; ++k) {
      const bfloat16 value = to_bfloat16(static_cast<float>(from[order[k]]));
      taken.as<std::int32_t>()[block * count + k] = pack_taken(static_cast<std::uint32_t>(order[k]), value);
      from[order[k]] -= to_float(value);
    }
  }
  write(x, values);
}

void ReferenceBackend::add_taken(const Tensor& x, const Tensor& taken, float factor) {
  auto values = read(x);
  const std::int64_t count = taken.columns();
  for (std::int64_t i = 0; i < taken.count(); ++i) {
    const std::int32_t one = taken.as<std::int32_t>()[i];
    values[static_cast<std::size_t>(i / count * kSparseBlock + position_of(one))] +=
        double{factor} * to_float(value_of(one));
  }
  write(x, values);
}

}  // namespace shoal
