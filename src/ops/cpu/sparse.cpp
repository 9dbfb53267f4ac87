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

void CpuBackend::take_int4(const Tensor& packed, const Tensor& x) {
  for_blocks(team_, packed.rows(), 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      float* from = x.as<float>() + block * kSparseBlock;
      std::int32_t* to = packed.as<std::int32_t>() + block * kInt4Words;
      std::uint32_t largest = 0;
      for (std::int64_t i = 0; i < kSparseBlock; ++i) largest = std::max(largest, magnitude_bits(from[i]));
      const float scale = int4_scale(largest);
      *to++ = std::bit_cast<std::int32_t>(scale);
      for (std::int64_t word = 0; word < kSparseBlock / 8; ++word) {
        std::uint32_t nibbles = 0;
        for (int i = 0; i < 8; ++i) {
          float& number = from[8 * word + i];
          const std::uint32_t nibble = int4_nibble(number, scale);
          nibbles |= nibble << 4 * i;
          number -= int4_value(nibble, scale);
        }
        to[word] = std::bit_cast<std::int32_t>(nibbles);
      }
    }
  });
}

void CpuBackend::add_int4(const Tensor& x, const Tensor& packed) {
  for_blocks(team_, packed.rows(), 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      float* to = x.as<float>() + block * kSparseBlock;
      const std::int32_t* from = packed.as<std::int32_t>() + block * kInt4Words;
      const auto scale = std::bit_cast<float>(*from++);
      for (std::int64_t i = 0; i < kSparseBlock; ++i) {
        const auto nibbles = std::bit_cast<std::uint32_t>(from[i / 8]);
        to[i] += int4_value(nibbles >> 4 * (i % 8) & 15u, scale);
      }
    }
  });
}

}  // namespace shoal::cpu
