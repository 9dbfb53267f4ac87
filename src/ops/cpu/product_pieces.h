// The pieces of a product's result that threads share, each computed by one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shoal::cpu {

struct ProductPiece {
  std::int64_t row, rows, column, columns;
  std::int64_t from, terms;  // of the sums
  bool beside;               // half of a sum whose other half is in the result
};

// The cut may change oneDNN's choice of kernel, and with it the bits. So the number of pieces of rows depends
// on the shape only, with one exception: with AVX-512 every element is the same in all cuts into two or more
// pieces of 113 to 512 rows (tests/ops/cpu_threads_test.cpp), and their number is chosen for the number of
// threads. Elsewhere it is chosen for eight. More threads than pieces of rows share the columns, which gives
// the bits of whole rows.
//
// A weight's gradient sums over the rows of two activations, and each of two threads has half of them in its
// cache. Where the gradient is much smaller than they are, its sums are split in halves, of which one goes
// beside the result and is added later: less passes between cores that share no cache.
class ProductPieces {
 public:
  // `over_rows`: of a weight's gradient.
  ProductPieces(std::int64_t rows, std::int64_t columns, std::int64_t sum_length, bool over_rows, int threads,
                bool avx512)
      : rows_(rows), columns_(columns), sum_length_(sum_length) {
    constexpr std::int64_t kWorthwhile = 1 << 21;  // floating-point operations: 10 to 20 us
    constexpr std::int64_t kNarrow = 128;          // columns of a piece that are worth packing its rows
    if (2 * rows * columns * sum_length < kWorthwhile) return;
    if (over_rows && splits_sums(rows, columns, sum_length)) {
      halves_ = 2;
      threads = (threads + 1) / 2;
    }
    const std::int64_t units = (rows + kUnit - 1) / kUnit;
    if (columns >= 8192) {
      across_ = columns / 1024;  // a wide right operand is read once
    } else if (units < 16) {
      across_ = std::clamp<std::int64_t>(columns / 64, 1, 4);
    } else {
      const std::int64_t sharers = avx512 ? threads : 8;
      const std::int64_t most = (avx512 ? 512 : 256) / kUnit * sharers;  // units in one round of pieces
      down_ = std::clamp<std::int64_t>(sharers * ((units + most - 1) / most), 2, units / 8);
      down_ -= down_ % halves_;  // so that its middle does not depend on it
    }
    if (across_ > 1) return;
    across_ = std::clamp<std::int64_t>((threads + down_ - 1) / down_, 1,
                                       std::max<std::int64_t>(columns / kNarrow, 1));
  }

  bool split() const { return halves_ == 2; }
  std::int64_t places() const { return down_ * across_; }  // in the result
  std::int64_t count() const { return halves_ * places(); }
  // All first halves of sums, then all second ones. The result has the first halves in its first rows, or
  // columns, and the second ones in the others: so one thread writes what it has summed, and adds to that.
  ProductPiece operator[](std::int64_t i) const {
    const auto half = i / places(), place = i % places();
    const auto [row, row_end] = range(rows_, down_, place / across_);
    const auto [column, column_end] = range(columns_, across_, place % across_);
    const auto [from, to] = range(sum_length_, halves_, half);
    return {row,
            row_end - row,
            column,
            column_end - column,
            from,
            to - from,
            split() && 2 * place / places() != half};
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

  // Halves pass rows * columns between two caches, whole sums sum_length * (rows + columns / 2): here three
  // times as much, since halves are written and read once more.
  static bool splits_sums(std::int64_t rows, std::int64_t columns, std::int64_t sum_length) {
    return sum_length * (2 * rows + columns) > 6 * rows * columns;
  }

  std::int64_t rows_, columns_, sum_length_;
  std::int64_t halves_ = 1, down_ = 1, across_ = 1;
};

}  // namespace shoal::cpu
