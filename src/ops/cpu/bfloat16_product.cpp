#include "ops/cpu/bfloat16_product.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/bfloat16_tile.h"
#include "ops/with_type.h"

namespace shoal::cpu {

bool Bfloat16Product::takes(const MatmulCall& call) {
  const std::int64_t k = call.transpose_a ? call.a.rows() : call.a.columns();
  return call.a.dtype == DType::bf16 && (k % 2 == 0 || (call.transpose_a && !call.transpose_b));
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

}  // namespace

void Bfloat16Product::operator()(const MatmulCall& call) {
  const std::int64_t m = call.c.rows(), n = call.c.columns();
  const std::int64_t k = call.transpose_a ? call.a.rows() : call.a.columns();
  const auto* a = call.a.as<bfloat16>();
  const auto* b = call.b.as<bfloat16>();
  const auto* bias = call.bias ? call.bias.as<bfloat16>() : nullptr;
  // Partial sums of a result in bfloat16 are kept as float32.
  const bool with_sums = call.c.dtype == DType::bf16 && k > kDepth;

  const auto block = [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
                         std::int64_t k0, std::int64_t depth, float* sums) {
    const std::int64_t pairs = count_of(depth, 2), panels = count_of(columns, kPanel),
                       parts = count_of(rows, kTaskRows);
    auto* right = right_.take<Pair>(pairs * panels * kPanel);
    const std::int64_t strip = strip_pairs(pairs), part_pairs = kTaskRows / kStrip * strip;
    auto* left = call.transpose_a ? left_.take<Pair>(parts * part_pairs) : nullptr;
    const std::int64_t wide = count_of(rows, kPackRows), deep = count_of(depth, kPackDepth);
    team_.run(panels + (left ? wide * deep : 0), [&](std::int64_t task, int) {
      if (task < panels) {
        const std::int64_t first = task * kPanel, width = std::min(kPanel, columns - first);
        Pair* to = right + task * pairs * kPanel;
        if (call.transpose_b) {
          pack_pairs_transposed(to, b + (column + first) * k + k0, k, width, depth);
        } else {
          pack_pairs(to, b + k0 * n + column + first, n, width, depth);
        }
      } else {
        const std::int64_t first = (task - panels) % wide * kPackRows,
                           from = (task - panels) / wide * kPackDepth;
        pack_strips(left + first / kStrip * strip + from / 2 * kStrip, strip,
                    a + (k0 + from) * m + row + first, m, std::min(kPackRows, rows - first),
                    std::min(kPackDepth, depth - from));
      }
    });
    team_.run(panels * parts, [&](std::int64_t task, int) {
      const std::int64_t panel = task / parts, part = task % parts;
      const std::int64_t first_row = row + part * kTaskRows,
                         height = std::min(kTaskRows, row + rows - first_row),
                         first = column + panel * kPanel, width = std::min(kPanel, column + columns - first);
      const Right packed{right + panel * pairs * kPanel, count_of(width, kLanes) * kLanes};
      const bool last = k0 + depth == k;
      const auto product = [&]<typename T>(Result<T> c) {
        if (left) {
          panel_product(c, height, width,
                        Left<true>{reinterpret_cast<const bfloat16*>(left + part * part_pairs), 0}, packed,
                        pairs);
        } else {
          panel_product(c, height, width, Left<false>{a + first_row * k + k0, k}, packed, pairs);
        }
      };
      const auto* own_bias = last && bias ? bias + first : nullptr;
      if (sums) {
        auto* at = sums + (first_row - row) * columns + first - column;
        product(Result<float>{at, columns, own_bias, k0 > 0});
        if (!last) return;
        for (std::int64_t i = 0; i < height; ++i) {
          auto* to = call.c.as<bfloat16>() + (first_row + i) * n + first;
          for_lanes(width, [&](std::int64_t j, std::int64_t live) {
            Vec value = load_n(at + i * columns + j, live);
            if (call.accumulate) value += load_n(to + j, live);
            store_n(to + j, value, live);
          });
        }
      } else {
        with_type(call.c.dtype, [&]<typename T>() {
          product(Result<T>{call.c.as<T>() + first_row * n + first, n, own_bias, call.accumulate || k0 > 0});
        });
      }
    });
  };

  for_pieces(n, kColumns, [&](std::int64_t column, std::int64_t columns) {
    for_pieces(m, kRows, [&](std::int64_t row, std::int64_t rows) {
      auto* sums = with_sums ? sums_.take<float>(rows * columns) : nullptr;
      for_pieces(k, kDepth, [&](std::int64_t k0, std::int64_t depth) {
        block(row, rows, column, columns, k0, depth, sums);
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
