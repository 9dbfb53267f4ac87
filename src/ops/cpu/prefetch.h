// Fetches what a thread reads next while it computes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/cpu/tile.h"

namespace shoal::cpu {

// Fetches a piece of a matrix into the second-level cache, some lines with each call.
class Prefetch {
 public:
  Prefetch() = default;
  // The piece `number` of `pieces` of the matrix's lines, in so many calls. `stride` and `bytes` are a row's.
  Prefetch(const std::byte* data, std::int64_t stride, std::int64_t rows, std::int64_t bytes,
           std::int64_t number, std::int64_t pieces, std::int64_t calls)
      : stride_(stride), bytes_(bytes) {
    const std::int64_t lines = count_of(bytes, kLine), begin = rows * lines * number / pieces;
    left_ = rows * lines * (number + 1) / pieces - begin;
    each_ = count_of(left_, calls);
    row_ = data + begin / lines * stride;
    at_ = begin % lines * kLine;
  }
  void operator()() {
    for (std::int64_t i = std::min(each_, left_); i > 0; --i, --left_) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += kLine;
      if (at_ < bytes_) continue;
      at_ = 0;
      row_ += stride_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  const std::byte* row_ = nullptr;
  std::int64_t stride_ = 0, bytes_ = 0, at_ = 0, left_ = 0, each_ = 0;
};

}  // namespace shoal::cpu
