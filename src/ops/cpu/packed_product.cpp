#include "ops/cpu/packed_product.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/tile.h"
#include "ops/with_type.h"

namespace shoal::cpu {
namespace {

// A task multiplies so many rows of the left operand by so many columns of the right one, in panels.
constexpr std::int64_t kTaskRows = 16 * kStrip, kTaskColumns = 64;
// A block of the product, whose packed operands stay in the third-level cache. A task's panels stay in the
// second-level cache.
constexpr std::int64_t kRows = 20 * kTaskRows, kColumns = 16 * kTaskColumns;
constexpr std::int64_t kUnits = 1024;
template <typename Unit>
constexpr std::int64_t kDepth = kUnits* UnitOf<Unit>::kTerms;
// The part of a left operand that one task packs: long runs of memory.
constexpr std::int64_t kPackRows = 4 * kTaskRows, kPackDepth = 128;

template <typename F>
void for_pieces(std::int64_t n, std::int64_t piece, F&& f) {
  for (std::int64_t begin = 0; begin < n; begin += piece) f(begin, std::min(piece, n - begin));
}

// Floats of a row that is copied: whole cache lines, and one more.
std::int64_t widened_row(std::int64_t depth) { return count_of(depth, 16) * 16 + 16; }

// The part [row, row + rows) x [column, column + columns) of a result, for the terms [from, from + depth) of
// its sums.
template <typename Unit>
struct Block {
  using Source = typename UnitOf<Unit>::Source;

  const MatmulCall& call;
  std::int64_t row, rows, column, columns, from, depth;

  std::int64_t m = call.c.rows(), n = call.c.columns(), k = call.k();
  std::int64_t units = count_of(depth, UnitOf<Unit>::kTerms);
  std::int64_t groups = count_of(columns, kTaskColumns), parts = count_of(rows, kTaskRows);
  std::int64_t strip = strip_units(units);
  // Cores that share no cache pass what one has packed and another multiplies: let that be the smaller one of
  // two packed operands.
  bool by_rows = call.transpose_a && rows > columns;
  // Whether rows of the left operand are copied, as floats.
  bool widened = !call.transpose_a && size_of(call.a.dtype) != sizeof(Source);
  // Tasks that pack the left operand.
  std::int64_t wide = count_of(rows, kPackRows), deep = count_of(depth, kPackDepth);
  Unit *left = nullptr, *right = nullptr;  // packed
  float* sums = nullptr;                   // [rows, columns], where partial sums are kept
  const float* bias = nullptr;             // [n], or null

  std::int64_t units_of_left() const {
    return call.transpose_a ? count_of(rows, kStrip) * strip : rows * widened_row(depth);
  }
  std::int64_t units_of_right() const { return count_of(columns, kPanel) * units * kPanel; }
  std::int64_t left_tasks() const { return call.transpose_a || widened ? wide * deep : 0; }

  // Pairs are made of bfloat16, floats of either type.
  template <typename F>
  static void with_source(DType type, F&& f) {
    if constexpr (std::is_same_v<Unit, float>) {
      with_type(type, f);
    } else {
      f.template operator()<Source>();
    }
  }

  void pack_left(std::int64_t task) const {
    const std::int64_t first = task / deep * kPackRows, at = task % deep * kPackDepth;
    const std::int64_t height = std::min(kPackRows, rows - first), terms = std::min(kPackDepth, depth - at);
    with_source(call.a.dtype, [&]<typename T>() {
      const T* a = call.a.as<T>();
      if (call.transpose_a) {
        pack_strips(left + first / kStrip * strip + at / UnitOf<Unit>::kTerms * kStrip, strip,
                    a + (from + at) * m + row + first, m, height, terms);
      } else if constexpr (!std::is_same_v<T, Source>) {
        for (std::int64_t i = first; i < first + height; ++i) {
          const T* in = a + (row + i) * k + from + at;
          float* out = left + i * widened_row(depth) + at;
          for_lanes(terms,
                    [&](std::int64_t j, std::int64_t live) { store_n(out + j, load_n(in + j, live), live); });
        }
      }
    });
  }

  void pack_right(std::int64_t task) const {
    const std::int64_t end = std::min(columns, (task + 1) * kTaskColumns);
    with_source(call.b.dtype, [&]<typename T>() {
      const T* b = call.b.as<T>();
      for (std::int64_t first = task * kTaskColumns; first < end; first += kPanel) {
        const std::int64_t width = std::min(kPanel, end - first), at = column + first;
        if (call.transpose_b) {
          pack_transposed(right + first * units, b + at * k + from, k, width, depth);
        } else {
          pack_columns(right + first * units, b + from * n + at, n, width, depth);
        }
      }
    });
  }

  void multiply(std::int64_t task) const {
    const std::int64_t first_row = (by_rows ? task / groups : task % parts) * kTaskRows;
    const std::int64_t group = (by_rows ? task % groups : task / parts) * kTaskColumns;
    const std::int64_t end = std::min(columns, group + kTaskColumns);
    for (std::int64_t first = group; first < end; first += kPanel) {
      if (sums) {
        multiply(first_row, first, sums + first_row * columns + first, columns, from > 0);
        if (from + depth == k) write_sums(first_row, first);
      } else {
        with_type(call.c.dtype, [&]<typename T>() {
          T* c = call.c.as<T>() + (row + first_row) * n + column + first;
          multiply(first_row, first, c, n, call.accumulate || from > 0);
        });
      }
    }
  }

  std::int64_t height(std::int64_t first_row) const { return std::min(kTaskRows, rows - first_row); }
  std::int64_t width(std::int64_t first) const { return std::min(kPanel, columns - first); }

  template <typename T>
  void multiply(std::int64_t first_row, std::int64_t first, T* to, std::int64_t stride, bool add) const {
    const Result<T> c{to, stride, bias && from + depth == k ? bias + column + first : nullptr, add};
    const auto here = width(first);
    const Right<Unit> b{right + first * units, count_of(here, kLanes) * kLanes};
    if (call.transpose_a) {
      const auto* strips = reinterpret_cast<const Source*>(left + first_row / kStrip * strip);
      panel_product(c, height(first_row), here, Left<Unit, true>{strips, 0}, b, units);
    } else if (widened) {
      const auto* copied = reinterpret_cast<const Source*>(left + first_row * widened_row(depth));
      panel_product(c, height(first_row), here, Left<Unit, false>{copied, widened_row(depth)}, b, units);
    } else {
      const auto* in_place = call.a.as<Source>() + (row + first_row) * k + from;
      panel_product(c, height(first_row), here, Left<Unit, false>{in_place, k}, b, units);
    }
  }

  void write_sums(std::int64_t first_row, std::int64_t first) const {
    for (std::int64_t i = first_row; i < first_row + height(first_row); ++i) {
      const float* sum = sums + i * columns + first;
      auto* to = call.c.as<bfloat16>() + (row + i) * n + column + first;
      for_lanes(width(first), [&](std::int64_t j, std::int64_t live) {
        Vec value = load_n(sum + j, live);
        if (call.accumulate) value += load_n(to + j, live);
        store_n(to + j, value, live);
      });
    }
  }
};

// Whether a product of bfloat16 is made of pairs: those along K are whole, or can be made so while they are
// packed.
[[maybe_unused]] bool suits_pairs(const MatmulCall& call) {
  return call.a.dtype == DType::bf16 && (call.k() % 2 == 0 || (call.transpose_a && !call.transpose_b));
}

}  // namespace

template <typename Unit>
void PackedProduct::multiply(const MatmulCall& call) {
  const std::int64_t m = call.c.rows(), n = call.c.columns(), k = call.k();
  // Partial sums of a result in bfloat16 are kept as float32.
  const bool with_sums = call.c.dtype == DType::bf16 && k > kDepth<Unit>;
  float* bias = nullptr;
  if (call.bias) {
    bias = bias_.take<float>(n);
    with_type(call.bias.dtype, [&]<typename T>() {
      for (std::int64_t i = 0; i < n; ++i) bias[i] = to_float(call.bias.as<T>()[i]);
    });
  }

  for_pieces(n, kColumns, [&](std::int64_t column, std::int64_t columns) {
    for_pieces(m, kRows, [&](std::int64_t row, std::int64_t rows) {
      auto* sums = with_sums ? sums_.take<float>(rows * columns) : nullptr;
      for_pieces(k, kDepth<Unit>, [&](std::int64_t from, std::int64_t depth) {
        Block<Unit> block{call, row, rows, column, columns, from, depth};
        block.sums = sums;
        block.bias = bias;
        block.right = right_.take<Unit>(block.units_of_right());
        if (block.left_tasks() > 0) block.left = left_.take<Unit>(block.units_of_left());
        team_.run(block.groups, [&](std::int64_t task, int) { block.pack_right(task); });
        if (block.left_tasks() > 0)
          team_.run(block.left_tasks(), [&](std::int64_t task, int) { block.pack_left(task); });
        team_.run(block.groups * block.parts, [&](std::int64_t task, int) { block.multiply(task); });
      });
    });
  });
}

void PackedProduct::operator()(const MatmulCall& call) {
#ifdef __AVX512BF16__
  if (suits_pairs(call)) return multiply<Pair>(call);
#endif
  multiply<float>(call);
}

bool PackedProduct::suits(DType type, bool amx) {
  constexpr bool kAvx2 = kLanes == 8;
  return type == DType::bf16 ? !amx : kAvx2;
}

std::size_t PackedProduct::scratch_bytes(const KernelSizes& sizes) {
  const bool bf16 = sizes.compute == DType::bf16, pairs = bf16 && kHasPairs;
  const std::int64_t terms = pairs ? 2 : 1, most = kUnits * terms;
  const auto units = [&](std::int64_t k) { return count_of(std::min(most, k), terms); };
  const std::int64_t rows = sizes.batch * sizes.positions, columns = sizes.columns, channels = sizes.channels;
  const std::int64_t widest = std::max(columns, sizes.classes);
  const auto right_of = [&](std::int64_t k, std::int64_t n) { return units(k) * std::min(kColumns, n); };
  const std::int64_t right = std::max({right_of(channels, widest), right_of(widest, channels),
                                       right_of(std::max(rows, sizes.logit_rows), columns)});
  // Left operands of weights' gradients, and copied rows of activations.
  const auto strips = [&](std::int64_t m, std::int64_t k) {
    return count_of(std::min(kRows, m), kStrip) * strip_units(units(k));
  };
  const std::int64_t high = std::min(kRows, rows);
  const std::int64_t copied = bf16 && !pairs ? high * widened_row(std::min(most, columns)) : 0;
  const std::int64_t left =
      std::max({strips(columns, rows), strips(sizes.classes, sizes.logit_rows), copied});
  const std::int64_t sums = bf16 && columns > most ? high * std::min(kColumns, columns) : 0;
  return static_cast<std::size_t>(right + left + sums + widest) * sizeof(float);
}

}  // namespace shoal::cpu
