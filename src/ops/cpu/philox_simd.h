// A vector of Philox blocks at a time, and dropout masks from them.
#pragma once

#include <array>

#include "core/philox.h"
#include "ops/cpu/simd.h"
#include "ops/dropout.h"

namespace shoal::cpu {

struct VecPhilox {
  VecU word[4];
};

// The high and low halves of the products a * m.
inline void multiply_wide(VecU a, std::uint32_t m, VecU& hi, VecU& lo) {
  typedef std::uint64_t VecU64 __attribute__((vector_size(4 * kLanes)));
  const VecU64 even = ((VecU64)a & 0xffffffffull) * static_cast<std::uint64_t>(m);
  const VecU64 odd = ((VecU64)a >> 32) * static_cast<std::uint64_t>(m);
  hi = (VecU)((even >> 32) | (odd & ~0xffffffffull));
  lo = a * m;
}

// Counter word 0 is first + lane; the other three are shared.
inline VecPhilox philox_lanes(PhiloxKey key, std::uint32_t first, std::uint32_t c1, std::uint32_t c2,
                              std::uint32_t c3) {
  VecU x0 = (VecU)lane_numbers() + first, x1 = splat_u(c1), x2 = splat_u(c2), x3 = splat_u(c3);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    VecU hi0, lo0, hi1, lo1;
    multiply_wide(x0, kPhiloxM0, hi0, lo0);
    multiply_wide(x2, kPhiloxM1, hi1, lo1);
    x0 = hi1 ^ x1 ^ key.lo;
    x1 = lo1;
    x2 = hi0 ^ x3 ^ key.hi;
    x3 = lo0;
    key.lo += kPhiloxW0;
    key.hi += kPhiloxW1;
  }
  return {{x0, x1, x2, x3}};
}

// The factors of a row under dropout, 0 or the scale, for 128 columns at a time from 128 * block on.
class DropoutRow {
 public:
  DropoutRow(const Dropout& dropout, std::uint32_t site)
      : key_(philox_key(dropout.seed, PhiloxStream::dropout)),
        step_(dropout.active() ? *dropout.step : 0),
        site_(site),
        threshold_(dropout.threshold()),
        scale_(dropout.scale()),
        first_column_(dropout.first_column) {}

  static constexpr std::int64_t kColumns = 128;
  using Factors = std::array<Vec, kColumns / kLanes>;

  // Sixteen Philox blocks of eight halves: half h of block b is column 16 h + b.
  Factors factors(std::int64_t row, std::int64_t block) const {
    constexpr std::size_t kVecs = 16 / kLanes;  // vectors of blocks
    Factors out;
    for (std::size_t vec = 0; vec < kVecs; ++vec) {
      const auto random = philox_lanes(
          key_, static_cast<std::uint32_t>(block * 16) + static_cast<std::uint32_t>(vec * kLanes),
          static_cast<std::uint32_t>(row), site_, step_);
      for (std::size_t half = 0; half < 8; ++half) {
        const VecU word = random.word[half / 2], bits = half % 2 == 0 ? word & 0xffffu : word >> 16;
        out[half * kVecs + vec] =
            select((VecI)bits >= static_cast<std::int32_t>(threshold_), splat(scale_), Vec{});
      }
    }
    return out;
  }
  std::int64_t first_column() const { return first_column_; }

 private:
  PhiloxKey key_;
  std::uint32_t step_, site_, threshold_;
  float scale_;
  std::int64_t first_column_;
};

// f(column, live lanes, factor) over one row of `columns` elements.
template <typename F>
void for_dropout_row(const DropoutRow& mask, std::int64_t row, std::int64_t columns, F&& f) {
  const std::int64_t first = mask.first_column();
  for (std::int64_t block = first / DropoutRow::kColumns; block * DropoutRow::kColumns < first + columns;
       ++block) {
    const auto factors = mask.factors(row, block);
    std::int64_t column = block * DropoutRow::kColumns - first;
    for (const Vec factor : factors) {
      if (column >= columns) break;
      if (column >= 0) f(column, std::min<std::int64_t>(kLanes, columns - column), factor);
      column += kLanes;
    }
  }
}

}  // namespace shoal::cpu
