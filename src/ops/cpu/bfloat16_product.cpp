#include "ops/cpu/bfloat16_product.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/bfloat16_tile.h"
#include "ops/with_type.h"

namespace shoal::cpu {

bool Bfloat16Product::takes(const MatmulCall& call) {
  return call.a.dtype == DType::bf16 && (call.k() % 2 == 0 || (call.transpose_a && !call.transpose_b));
}

#ifndef __AVX512BF16__

bool Bfloat16Product::compiled() { return false; }
void Bfloat16Product::operator()(const MatmulCall&) {}
std::size_t Bfloat16Product::scratch_bytes(std::int64_t, std::int64_t) { return 0; }

#else

bool Bfloat16Product::compiled() { return true; }

namespace {

// A block of the product: 7.5 MiB of a packed left operand, and 4 MiB of a right one, whose panels have 256
// KiB and stay in the second-level cache.
constexpr std::int64_t kTaskRows = 16 * kStrip, kRows = 20 * kTaskRows, kColumns = 16 * kPanel, kDepth = 2048;
// The part of a left operand that one task packs: long runs of memory.
constexpr std::int64_t kPackRows = 4 * kTaskRows, kPackDepth = 128;

template <typename F>
void for_pieces(std::int64_t n, std::int64_t piece, F&& f) {
  for (std::int64_t begin = 0; begin < n; begin += piece) f(begin, std::min(piece, n - begin));
}

// The part [row, row + rows) x [column, column + columns) of a result, for the terms [from, from + depth) of
// its sums.
struct Block {
  const MatmulCall& call;
  std::int64_t row, rows, column, columns, from, depth;

  std::int64_t m = call.c.rows(), n = call.c.columns(), k = call.k();
  std::int64_t pairs = count_of(depth, 2);
  std::int64_t panels = count_of(columns, kPanel), parts = count_of(rows, kTaskRows);
  std::int64_t strip = strip_pairs(pairs),
               part = kTaskRows / kStrip * strip;  // pairs of a packed left operand
  // Tasks that pack the left operand.
  std::int64_t wide = count_of(rows, kPackRows), deep = count_of(depth, kPackDepth);
  Pair *left = nullptr, *right = nullptr;  // packed; left is null where it is read in place
  float* sums = nullptr;                   // [rows, columns], where partial sums are kept

  std::int64_t pairs_of_left() const { return call.transpose_a ? parts * part : 0; }
  std::int64_t pairs_of_right() const { return panels * pairs * kPanel; }
  std::int64_t left_tasks() const { return call.transpose_a ? wide * deep : 0; }

  void pack_left(std::int64_t task) const {
    const std::int64_t first = task % wide * kPackRows, at = task / wide * kPackDepth;
    pack_strips(left + first / kStrip * strip + at / 2 * kStrip, strip,
                call.a.as<bfloat16>() + (from + at) * m + row + first, m, std::min(kPackRows, rows - first),
                std::min(kPackDepth, depth - at));
  }

  void pack_right(std::int64_t panel) const {
    const std::int64_t first = panel * kPanel, width = std::min(kPanel, columns - first), at = column + first;
    const auto* b = call.b.as<bfloat16>();
    Pair* to = right + panel * pairs * kPanel;
    if (call.transpose_b) {
      pack_pairs_transposed(to, b + at * k + from, k, width, depth);
    } else {
      pack_pairs(to, b + from * n + at, n, width, depth);
    }
  }

  void multiply(std::int64_t task) const {
    const std::int64_t first_row = task % parts * kTaskRows, first_column = task / parts * kPanel;
    if (!sums)
      return with_type(call.c.dtype, [&]<typename T>() {
        auto* c = call.c.as<T>() + (row + first_row) * n + column + first_column;
        multiply(first_row, first_column, c, n, call.accumulate || from > 0);
      });
    multiply(first_row, first_column, sums + first_row * columns + first_column, columns, from > 0);
    if (from + depth == k) write_sums(first_row, first_column);
  }

  std::int64_t height(std::int64_t first_row) const { return std::min(kTaskRows, rows - first_row); }
  std::int64_t width(std::int64_t first_column) const { return std::min(kPanel, columns - first_column); }

  template <typename T>
  void multiply(std::int64_t first_row, std::int64_t first_column, T* to, std::int64_t stride,
                bool add) const {
    const bool with_bias = call.bias && from + depth == k;
    const Result<T> c{to, stride, with_bias ? call.bias.as<bfloat16>() + column + first_column : nullptr,
                      add};
    const auto columns_here = width(first_column);
    const Right b{right + first_column * pairs, count_of(columns_here, kLanes) * kLanes};
    if (left) {
      const auto* packed = reinterpret_cast<const bfloat16*>(left + first_row / kTaskRows * part);
      panel_product(c, height(first_row), columns_here, Left<true>{packed, 0}, b, pairs);
    } else {
      const auto* in_place = call.a.as<bfloat16>() + (row + first_row) * k + from;
      panel_product(c, height(first_row), columns_here, Left<false>{in_place, k}, b, pairs);
    }
  }

  void write_sums(std::int64_t first_row, std::int64_t first_column) const {
    for (std::int64_t i = first_row; i < first_row + height(first_row); ++i) {
      const float* sum = sums + i * columns + first_column;
      auto* to = call.c.as<bfloat16>() + (row + i) * n + column + first_column;
      for_lanes(width(first_column), [&](std::int64_t j, std::int64_t live) {
        Vec value = load_n(sum + j, live);
        if (call.accumulate) value += load_n(to + j, live);
        store_n(to + j, value, live);
      });
    }
  }
};

}  // namespace

void Bfloat16Product::operator()(const MatmulCall& call) {
  const std::int64_t m = call.c.rows(), n = call.c.columns(), k = call.k();
  // Partial sums of a result in bfloat16 are kept as float32.
  const bool with_sums = call.c.dtype == DType::bf16 && k > kDepth;

  for_pieces(n, kColumns, [&](std::int64_t column, std::int64_t columns) {
    for_pieces(m, kRows, [&](std::int64_t row, std::int64_t rows) {
      auto* sums = with_sums ? sums_.take<float>(rows * columns) : nullptr;
      for_pieces(k, kDepth, [&](std::int64_t from, std::int64_t depth) {
        Block block{call, row, rows, column, columns, from, depth};
        block.sums = sums;
        block.right = right_.take<Pair>(block.pairs_of_right());
        if (call.transpose_a) block.left = left_.take<Pair>(block.pairs_of_left());
        team_.run(block.panels + block.left_tasks(), [&](std::int64_t task, int) {
          if (task < block.panels) {
            block.pack_right(task);
          } else {
            block.pack_left(task - block.panels);
          }
        });
        team_.run(block.panels * block.parts, [&](std::int64_t task, int) { block.multiply(task); });
      });
    });
  });
}

std::size_t Bfloat16Product::scratch_bytes(std::int64_t rows, std::int64_t columns) {
  const std::int64_t depth = std::min(kDepth, std::max(rows, columns)), wide = std::min(kColumns, columns);
  const std::int64_t right = depth / 2 * wide;
  const std::int64_t left = std::min(kRows, columns) / kStrip * strip_pairs(std::min(kDepth, rows) / 2);
  const std::int64_t sums = columns > kDepth ? std::min(kRows, rows) * wide : 0;
  return static_cast<std::size_t>(right + left + sums) * sizeof(float);
}

#endif

}  // namespace shoal::cpu
