// The pieces of a product's result that threads share, each computed by one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shoal::cpu {

struct ProductPiece {
  std::int64_t row, rows, column, columns;
};

// The cut may change oneDNN's choice of kernel, and with it the bits. So the number of pieces of rows depends
// on the shape only, with one exception: with AVX-512 every element is the same in all cuts into two or more
// pieces of 113 to 512 rows (tests/ops/cpu_threads_test.cpp), and their number is chosen for the number of
// threads. Elsewhere it is chosen for eight. More threads than pieces of rows share the columns, which gives
// the bits of whole rows where the operands are dense.
class ProductPieces {
 public:
  ProductPieces(std::int64_t rows, std::int64_t columns, std::int64_t sum_length, int threads, bool avx512)
      : rows_(rows), columns_(columns) {
    constexpr std::int64_t kWorthwhile = 1 << 21;  // floating-point operations: 10 to 20 us
    constexpr std::int64_t kNarrow = 128;          // columns of a piece that are worth packing its rows
    if (2 * rows * columns * sum_length < kWorthwhile) return;
    const std::int64_t units = (rows + kUnit - 1) / kUnit;
    if (columns >= 8192) {
      across_ = columns / 1024;  // logits, which are wide: their weights are read once
    } else if (units < 16) {
      across_ = std::clamp<std::int64_t>(columns / 64, 1, 4);
    } else {
      const std::int64_t sharers = avx512 ? threads : 8;
      const std::int64_t most = (avx512 ? 512 : 256) / kUnit * sharers;  // units in one round of pieces
      down_ = std::clamp<std::int64_t>(sharers * ((units + most - 1) / most), 2, units / 8);
    }
    if (across_ > 1) return;
    across_ = std::clamp<std::int64_t>((threads + down_ - 1) / down_, 1,
                                       std::max<std::int64_t>(columns / kNarrow, 1));
    parts_of_rows_ = across_ > 1;
  }

  // Whether fewer threads would share whole rows.
  bool parts_of_rows() const { return parts_of_rows_; }
  std::int64_t count() const { return down_ * across_; }
  ProductPiece operator[](std::int64_t i) const {
    const auto [row, row_end] = range(rows_, down_, i / across_);
    const auto [column, column_end] = range(columns_, across_, i % across_);
    return {row, row_end - row, column, column_end - column};
  }

 private:
  static constexpr std::int64_t kUnit = 16;  // pieces are equal up to one unit

  struct Range {
    std::int64_t begin, end;
  };
  static Range range(std::int64_t n, std::int64_t pieces, std::int64_t i) {
    const std::int64_t units = (n + kUnit - 1) / kUnit;
    return {units * i / pieces * kUnit, std::min(n, units * (i + 1) / pieces * kUnit)};
  }

  std::int64_t rows_, columns_;
  std::int64_t down_ = 1, across_ = 1;
  bool parts_of_rows_ = false;
};

}  // namespace shoal::cpu
