// A block of a packed product (packed_product.h): what all threads read while they multiply one, the tasks
// that it is cut into, and what each of them packs, multiplies and fetches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/amx.h"
#include "ops/cpu/matmul_call.h"
#include "ops/cpu/own_part.h"
#include "ops/cpu/prefetch.h"
#include "ops/cpu/tile.h"
#include "ops/with_type.h"

namespace shoal::cpu {

// A task multiplies so many rows of the left operand by so many columns of the right one, in panels. Both
// stay in the second-level cache.
struct TaskSize {
  std::int64_t rows, columns;
};
constexpr std::int64_t kTaskRows = 16 * kStrip, kTaskColumns = 64;
template <typename Unit>
TaskSize most_of_task(std::int64_t) {
  return {kTaskRows, kTaskColumns};
}
template <typename Unit>
TaskSize task_size(bool, std::int64_t, std::int64_t, std::int64_t units, int) {
  return most_of_task<Unit>(units);
}
// A block of the product: what all threads read stays in the third-level cache.
constexpr std::int64_t kBlockRows = 20 * kTaskRows, kBlockColumns = 16 * kTaskColumns;
constexpr std::int64_t kBlockUnits = 1536;
// So many terms of a sum at a time, those of a weight's gradient or of others. Fewer leave room in a
// second-level cache for the next operands, of which a gradient has two that are large. Tile registers make
// more of it in other products, and a gradient, which they multiply fast, is best written once.
template <typename Unit>
constexpr std::int64_t deepest(bool of_weight) {
  const std::int64_t share = kTiles<Unit> ? (of_weight ? 1 : 3) : (of_weight ? 2 : 1);
  return UnitOf<Unit>::kTerms * kBlockUnits / share;
}
#ifdef __AVX512BF16__
// Tile registers multiply faster than the third-level cache delivers. So a thread's own operand takes nearly
// half of a second-level cache of 2 MiB, as long as all threads have some tasks.
template <>
inline TaskSize most_of_task<TilePair>(std::int64_t units) {
  constexpr std::int64_t kBytes = 896 << 10, kOther = 4 * kSide;
  const auto bytes = static_cast<std::int64_t>(sizeof(TilePair)) * units;
  return {kOther, std::clamp(kBytes / bytes / kSide * kSide, 2 * kSide, kMostOwn)};
}
template <>
inline TaskSize task_size<TilePair>(bool own_left, std::int64_t rows, std::int64_t columns,
                                    std::int64_t units, int threads) {
  constexpr std::int64_t kEach = 4;
  auto [other, own] = most_of_task<TilePair>(units);
  const std::int64_t n = own_left ? rows : columns, m = own_left ? columns : rows;
  own = count_of(count_of(n, count_of(n, own)), kSide) * kSide;
  while (count_of(n, own) * count_of(m, other) < kEach * threads && std::max(own, other) > 2 * kSide)
    (own > other ? own : other) -= kSide;
  return own_left ? TaskSize{own, other} : TaskSize{other, own};
}
#endif
// The part of a left operand that one task packs: long runs of memory.
constexpr std::int64_t kPackRows = 4 * kTaskRows, kPackDepth = 128;

// Operands of floats that stay in a second-level cache as they are, with strides between the rows, need no
// packing where a tile reads four cache lines of a row, as with AVX-512 (bench/results/products.md): up to so
// many bytes, of both, and of one.
constexpr bool kReadsInPlace = kPanel * sizeof(float) >= 4 * 64;
constexpr std::int64_t kMostInPlace = 1 << 20, kOneInPlace = 768 << 10;

// Floats of a row that is copied: whole cache lines, and one more.
inline std::int64_t widened_row(std::int64_t depth) { return count_of(depth, 16) * 16 + 16; }

// The part [row, row + rows) x [column, column + columns) of a result, for the terms [from, from + depth) of
// its sums, or of their half from `begin` on. Each thread packs for itself the right operand's columns of its
// tasks, and fetches those of the next tasks while it multiplies: so it multiplies what is in its
// second-level cache, and little passes between cores. A left operand that is transposed has to be packed as
// well, the smaller one by all threads for all.
template <typename Unit>
struct ProductBlock {
  using Form = UnitOf<Unit>;
  using Source = typename Form::Source;
  static constexpr std::int64_t kTerms = Form::kTerms, kStrip = Form::kStrip, kPanel = Form::kPanel;

  const MatmulCall& call;
  std::int64_t row, rows, column, columns, begin, from, depth;
  std::int64_t pieces;  // of rows, where each thread has one; or 0
  TaskSize size;

  std::int64_t m = call.c.rows(), n = call.c.columns(), k = call.k();
  std::int64_t units = count_of(depth, kTerms), strip = Form::strip_units(units);
  std::int64_t task_rows = pieces > 0 ? count_of(count_of(rows, pieces), kStrip) * kStrip : size.rows;
  std::int64_t groups = count_of(columns, size.columns), parts = count_of(rows, task_rows);
  std::int64_t panel = Form::panel_units(units);  // from one packed panel to the next
  bool own_left = owns_left(call);
  // Whether the columns of a transposed left operand, and the rows of a right one, are read where they lie.
  bool left_in_place = call.transpose_a && in_place(call.a, m, 0),
       right_in_place = !call.transpose_b && n % kLanes == 0 && in_place(call.b, n, left_in_place ? m : 0);
  // Whether rows of the left operand are copied, as floats.
  bool widened = !call.transpose_a && size_of(call.a.dtype) != sizeof(Source);
  // Tasks that pack the left operand.
  std::int64_t wide = count_of(rows, kPackRows), deep = count_of(depth, kPackDepth);
  Unit *left = nullptr, *right = nullptr;  // packed by all
  float* sums = nullptr;                   // [rows, columns], where sums of these terms go first, or null
  const float* bias = nullptr;             // [n], or null

  static bool owns_left(const MatmulCall& call) {
    return call.transpose_a && call.c.rows() > call.c.columns();
  }
  std::int64_t units_of_left() const {
    return call.transpose_a ? count_of(rows, kStrip) * strip : rows * widened_row(depth);
  }
  std::int64_t units_of_right() const { return count_of(columns, kPanel) * panel; }
  std::int64_t left_tasks() const {
    return !own_left && ((call.transpose_a && !left_in_place) || widened) ? wide * deep : 0;
  }
  std::int64_t right_tasks() const { return own_left && !right_in_place ? groups : 0; }
  std::int64_t tasks() const { return groups * parts; }

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
    if (call.transpose_a)
      return pack_left(left + first / kStrip * strip + at / kTerms * kRun, first, height, at, terms);
    with_source(call.a.dtype, [&]<typename T>() {
      const T* a = call.a.as<T>();
      for (std::int64_t i = first; i < first + height; ++i) {
        const T* in = a + (row + i) * k + from + at;
        float* out = reinterpret_cast<float*>(left) + i * widened_row(depth) + at;
        for_lanes(terms,
                  [&](std::int64_t j, std::int64_t live) { store_n(out + j, load_n(in + j, live), live); });
      }
    });
  }
  void pack_left(Unit* to, std::int64_t first, std::int64_t height, std::int64_t at,
                 std::int64_t terms) const {
    with_source(call.a.dtype, [&]<typename T>() {
      const T* a = call.a.as<T>() + (from + at) * m + row + first;
      if constexpr (kTiles<Unit>) {
        Form::pack_left(to, Form::apart(units), a, m, height, terms);
      } else {
        pack_strips(to, strip, a, m, height, terms);
      }
    });
  }

  void pack_right(Unit* to, std::int64_t group) const {
    with_source(call.b.dtype, [&]<typename T>() {
      const T* b = call.b.as<T>();
      // Long runs of the rows, where the panels of tile registers need no calls of their own.
      const std::int64_t step = kTiles<Unit> ? size.columns : kPanel;
      for (std::int64_t first = group * size.columns; first < end_of(group); first += step, to += panel) {
        const std::int64_t at = column + first, width = std::min(step, end_of(group) - first);
        if (call.transpose_b) {
          pack_transposed(to, b + at * k + from, k, width, depth);
        } else {
          pack_columns(to, b + from * n + at, n, width, depth);
        }
      }
    });
  }
  void pack_right(std::int64_t group) const { pack_right(packed_right(group), group); }

  // Tasks with the same own operand follow each other.
  void multiply(std::int64_t task, OwnPart& own) const {
    const std::int64_t others = own_left ? groups : parts, which = task / others, other = task % others;
    const std::int64_t group = own_left ? other : which, first_row = (own_left ? which : other) * task_rows;
    const bool packs = own_left ? !left_in_place : !right_in_place;
    Unit* packed = packs ? own.memory.take<Unit>(own_units(size, units)) : nullptr;
    const std::int64_t number = 2 * which + (begin > 0);
    if (packs && own.packed != number) {
      if (own_left) {
        pack_left(packed, first_row, height(first_row), 0, depth);
      } else {
        pack_right(packed, group);
      }
      own.packed = number;
    }
    const Unit* rows_packed = own_left ? packed : packed_left(first_row);
    const Unit* columns_packed = own_left ? packed_right(group) : packed;
    auto own_next = pieces > 0 ? prefetch_next(which, 0, 1) : prefetch_next(which, other, others);
    if constexpr (kTiles<Unit>) {
      Fetches fetches{*this, first_row, group * size.columns, own_next, {}};
      const std::int64_t first = group * size.columns, width = end_of(group) - first;
      const auto multiply_to = [&]<typename T>(T* to, std::int64_t stride, bool add) {
        const Result<T> c{to, stride, bias_of(first), add, !add && streams(to, stride)};
        const auto a = left_of(first_row, rows_packed);
        own_left ? tile_product<true>(c, height(first_row), width, a, columns_packed, depth, fetches)
                 : tile_product<false>(c, height(first_row), width, a, columns_packed, depth, fetches);
      };
      write(first_row, first, width, multiply_to);
    } else {
      for (std::int64_t first = group * size.columns; first < end_of(group); first += kPanel) {
        write(first_row, first, width(first), [&]<typename T>(T* to, std::int64_t stride, bool add) {
          multiply(Result<T>{to, stride, bias_of(first), add}, first_row, rows_packed, width(first),
                   right_of(first, columns_packed), own_next);
        });
      }
    }
  }

  // The units of a thread's own part.
  static std::int64_t own_units(const TaskSize& most, std::int64_t units) {
    return std::max(most.rows / kStrip * Form::strip_units(units),
                    count_of(most.columns, kPanel) * Form::panel_units(units));
  }

 private:
  // Whether an operand is read where it lies, beside the other one if that has so many columns in place.
  bool in_place(const Tensor& operand, std::int64_t width, std::int64_t other) const {
    const auto bytes = [&](std::int64_t of) { return depth * of * static_cast<std::int64_t>(sizeof(float)); };
    return kReadsInPlace && std::is_same_v<Unit, float> && operand.dtype == DType::f32 &&
           bytes(width) <= kOneInPlace && bytes(width + other) <= kMostInPlace;
  }
  // The rows that stand side by side in a packed left operand.
  static constexpr std::int64_t kRun = kTiles<Unit> ? 16 : kStrip;

  // A task's part of what all threads pack, null where they pack nothing. Rows that are not transposed are
  // counted from the block's first one.
  Unit* packed_left(std::int64_t first_row) const {
    return left && call.transpose_a ? left + first_row / kStrip * strip : left;
  }
  Unit* packed_right(std::int64_t group) const {
    return right ? right + group * size.columns / kPanel * panel : nullptr;
  }
  std::int64_t height(std::int64_t first_row) const { return std::min(task_rows, rows - first_row); }
  std::int64_t width(std::int64_t first) const { return std::min(kPanel, columns - first); }
  std::int64_t end_of(std::int64_t group) const { return std::min(columns, (group + 1) * size.columns); }

  // The bias of the columns from `first` on; null before the last terms.
  const float* bias_of(std::int64_t first) const {
    return bias && from + depth == k ? bias + column + first : nullptr;
  }
  // Calls multiply_to(result, stride, add) for a part of the result or of its partial sums.
  template <typename F>
  void write(std::int64_t first_row, std::int64_t first, std::int64_t width, F&& multiply_to) const {
    if (sums) {
      multiply_to(sums + first_row * columns + first, columns, from > begin);
      if (from + depth == k && call.c.dtype == DType::bf16) write_sums(first_row, first, width);
    } else {
      with_type(call.c.dtype, [&]<typename T>() {
        multiply_to(call.c.as<T>() + (row + first_row) * n + column + first, n, call.accumulate || from > 0);
      });
    }
  }
  // Whether what is written is better kept out of the caches: it is larger than what they hold of one thread.
  template <typename T>
  bool streams(const T* to, std::int64_t stride) const {
    constexpr std::int64_t kLarge = 1 << 20, kLine = 64 / sizeof(T);
    return std::is_same_v<T, float> && !sums && call.c.count() >= kLarge && stride % kLine == 0 &&
           reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
  }
  // The calls of fetch() in a task.
  std::int64_t calls() const { return task_rows / kStrip * (size.columns / kPanel) * Form::calls(units); }

  // A thread with tile registers fetches a piece of what it will pack next, and the strip of 32 of the other
  // operand behind the one that it multiplies.
  struct Fetches {
    const ProductBlock& block;
    std::int64_t row, column;
    Prefetch own, strip;
    void begin(std::int64_t i) { strip = block.prefetch_strip(block.own_left ? column : row, i + 1); }
    void operator()() {
      own();
      strip();
    }
  };
  Prefetch prefetch_strip(std::int64_t first, std::int64_t i) const {
    const std::int64_t blocks = own_left ? task_rows / kStrip : size.columns / kPanel,
                       calls = blocks * Form::calls(units);
    const auto packed = [&](const Unit* data, std::int64_t count) {
      const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof *data);
      return Prefetch(reinterpret_cast<const std::byte*>(data), bytes, 1, bytes, 0, 1, calls);
    };
    first += i * kStrip;
    if (first >= (own_left ? columns : rows)) first = 0;
    if (own_left) return packed(right + first / kPanel * panel, panel);
    if (call.transpose_a) return packed(left + first / kStrip * strip, strip);
    const auto bytes = static_cast<std::int64_t>(sizeof(Source));
    return Prefetch(call.a.as<std::byte>() + ((row + first) * k + from) * bytes, k * bytes,
                    std::min(kStrip, rows - first), depth * bytes, 0, 1, calls);
  }
  // A panel of the right operand, of the task's packed ones or in place.
  Right<Unit> right_of(std::int64_t first, const Unit* columns_packed) const {
    if (right_in_place) return {call.b.as<Unit>() + from * n + column + first, n};
    return {columns_packed + first % size.columns / kPanel * panel, round_up(width(first))};
  }
  auto left_of(std::int64_t first_row, const Unit* rows_packed) const {
    using Left = typename Form::Left;
    if (!call.transpose_a) return Left::rows(call.a.as<Source>() + (row + first_row) * k + from, k);
    return Left::tiles(rows_packed, units);
  }
  // A piece of the part that a thread will probably pack next.
  Prefetch prefetch_next(std::int64_t which, std::int64_t number, std::int64_t count) const {
    const std::int64_t next = which + 1;
    const auto of = [&](const Tensor& source, std::int64_t first_row, std::int64_t first_column,
                        std::int64_t height, std::int64_t width) {
      const auto bytes = static_cast<std::int64_t>(size_of(source.dtype)), stride = source.columns();
      return Prefetch(source.as<std::byte>() + (first_row * stride + first_column) * bytes, stride * bytes,
                      height, width * bytes, number, count, calls());
    };
    if (next == (own_left ? parts : groups)) return {};
    if (own_left) return of(call.a, from, row + next * size.rows, depth, height(next * size.rows));
    const std::int64_t first = column + next * size.columns, width = end_of(next) - next * size.columns;
    return call.transpose_b ? of(call.b, first, from, width, depth) : of(call.b, from, first, depth, width);
  }

  // `rows_packed` are the task's rows where the left operand is transposed, else all rows of the block.
  template <typename T>
  void multiply(const Result<T>& c, std::int64_t first_row, const Unit* rows_packed, std::int64_t width,
                const Right<Unit>& b, Prefetch& prefetch) const {
    const auto with_left = [&](const auto& a, auto&& fetch) {
      panel_product(c, height(first_row), width, a, b, units, fetch);
    };
    const auto with_rows = [&](const Left<Unit, false>& a) {
      auto next = a.from(kStrip);
      with_left(a, [&] {
        prefetch();
        fetch_beginning(next);
        next = next.from(1);
      });
    };
    if (left_in_place) {
      with_left(Left<Unit, true>{call.a.as<Source>() + from * m + row + first_row, m, kStrip}, prefetch);
    } else if (call.transpose_a) {
      with_left(left_strips(rows_packed, units), prefetch);
    } else if (widened) {
      const std::int64_t stride = widened_row(depth);
      with_rows(left_rows<Unit>(reinterpret_cast<const Source*>(rows_packed) + first_row * stride, stride));
    } else {
      with_rows(left_rows<Unit>(call.a.as<Source>() + (row + first_row) * k + from, k));
    }
  }

  // Fetches the beginning of the next tile's row: the processor fetches the rest by itself, once it sees a
  // row being read. The row may be past the last one.
  static void fetch_beginning(const Left<Unit, false>& a) {
    constexpr std::int64_t kLine = 64 / sizeof *a.data;
    for (std::int64_t line = 0; line < 2; ++line) __builtin_prefetch(a.data + line * kLine, 0, 2);
  }

  void write_sums(std::int64_t first_row, std::int64_t first, std::int64_t width) const {
    for (std::int64_t i = first_row; i < first_row + height(first_row); ++i) {
      const float* sum = sums + i * columns + first;
      auto* to = call.c.as<bfloat16>() + (row + i) * n + column + first;
      for_lanes(width, [&](std::int64_t j, std::int64_t live) {
        Vec value = load_n(sum + j, live);
        if (call.accumulate) value += load_n(to + j, live);
        store_n(to + j, value, live);
      });
    }
  }
};

}  // namespace shoal::cpu
