// The largest numbers of blocks, and sums of them.
#include "ops/sparse.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

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

// Levels are of float32 numbers; the rest is exact.
void ReferenceBackend::take_int4(const Tensor& packed, const Tensor& x) {
  auto values = read(x);
  for (std::int64_t block = 0; block < packed.rows(); ++block) {
    const std::span numbers(values.data() + block * kSparseBlock, static_cast<std::size_t>(kSparseBlock));
    std::int32_t* words = packed.as<std::int32_t>() + block * kInt4Words;
    float largest = 0, scale = std::numeric_limits<float>::quiet_NaN();
    for (const double number : numbers) largest = std::max(largest, std::abs(static_cast<float>(number)));
    const bool finite = std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); });
    if (finite) {  // a seventh, rounded up to 20 bits
      int exponent = 0;
      std::frexp(largest / 7, &exponent);
      const double unit = std::ldexp(1.0, std::max(exponent - 20, -145));
      scale = static_cast<float>(std::ceil(largest / 7 / unit) * unit);
    }
    words[0] = std::bit_cast<std::int32_t>(scale);
    std::fill_n(words + 1, kSparseBlock / 8, 0);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const float level = scale > 0 ? std::nearbyint(static_cast<float>(numbers[i]) / scale) : 0;
      const std::uint32_t nibble = static_cast<std::uint32_t>(static_cast<std::int32_t>(level)) & 15u;
      words[1 + i / 8] |= std::bit_cast<std::int32_t>(nibble << 4 * (i % 8));
      numbers[i] -= double{level} * scale;
    }
  }
  write(x, values);
}

void ReferenceBackend::add_int4(const Tensor& x, const Tensor& packed) {
  auto values = read(x);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int32_t* words = packed.as<std::int32_t>() + i / kSparseBlock * kInt4Words;
    const std::size_t at = i % kSparseBlock;
    const std::uint32_t nibble = std::bit_cast<std::uint32_t>(words[1 + at / 8]) >> 4 * (at % 8) & 15u;
    const int level = nibble < 8 ? static_cast<int>(nibble) : static_cast<int>(nibble) - 16;
    values[i] += double{std::bit_cast<float>(words[0])} * level;
  }
  write(x, values);
}

}  // namespace shoal
