#include "ops/cpu/packed_product.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/amx.h"
#include "ops/cpu/tile.h"
#include "ops/with_type.h"

namespace shoal::cpu {
namespace {

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
constexpr std::int64_t kRows = 20 * kTaskRows, kColumns = 16 * kTaskColumns;
constexpr std::int64_t kUnits = 1536;
// So many terms of a sum at a time, those of a weight's gradient or of others. Tile registers make more of a
// cache that holds more columns of fewer terms, but a gradient is best written once.
template <typename Unit>
constexpr std::int64_t deepest(bool of_weight) {
  return UnitOf<Unit>::kTerms * (kTiles<Unit> && !of_weight ? kUnits / 3 : kUnits);
}
#ifdef __AVX512BF16__
// Tile registers multiply faster than the third-level cache delivers. So a thread's own operand takes nearly
// half of a second-level cache of 2 MiB, as long as all threads have some tasks.
template <>
TaskSize most_of_task<TilePair>(std::int64_t units) {
  constexpr std::int64_t kBytes = 896 << 10, kOther = 4 * kSide;
  const auto bytes = static_cast<std::int64_t>(sizeof(TilePair)) * units;
  return {kOther, std::clamp(kBytes / bytes / kSide * kSide, 2 * kSide, kMostOwn)};
}
template <>
TaskSize task_size<TilePair>(bool own_left, std::int64_t rows, std::int64_t columns, std::int64_t units,
                             int threads) {
  constexpr std::int64_t kEach = 4;
  auto [other, own] = most_of_task<TilePair>(units);
  const std::int64_t n = own_left ? rows : columns, m = own_left ? columns : rows;
  own = count_of(count_of(n, count_of(n, own)), kSide) * kSide;
  while (count_of(n, own) * count_of(m, other) < kEach * threads && std::max(own, other) > 2 * kSide)
    (own > other ? own : other) -= kSide;
  return own_left ? TaskSize{own, other} : TaskSize{other, own};
}
#endif
// A thread has one piece of the rows, and packs the whole right operand for itself, where that is a weight of
// so few elements at most and each thread gets so many rows at least. The rows are in its cache from the
// layer before. A task of some columns would read all rows, and threads whose cores share no cache would wait
// for each other's.
constexpr std::int64_t kSmallWeight = 128 << 10, kOwnRows = 2 * kTaskRows;
// The part of a left operand that one task packs: long runs of memory.
constexpr std::int64_t kPackRows = 4 * kTaskRows, kPackDepth = 128;

template <typename F>
void for_pieces(std::int64_t n, std::int64_t piece, F&& f) {
  for (std::int64_t begin = 0; begin < n; begin += piece) f(begin, std::min(piece, n - begin));
}

// The size of a piece where so few as possible are as equal as possible, in whole cache lines.
std::int64_t even_piece(std::int64_t n, std::int64_t most) {
  constexpr std::int64_t kLine = 32;
  return count_of(count_of(n, count_of(n, most)), kLine) * kLine;
}

// Floats of a row that is copied: whole cache lines, and one more.
std::int64_t widened_row(std::int64_t depth) { return count_of(depth, 16) * 16 + 16; }

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

// The part [row, row + rows) x [column, column + columns) of a result, for the terms [from, from + depth) of
// its sums. Each thread packs for itself the right operand's columns of its tasks, and fetches those of the
// next tasks while it multiplies: so it multiplies what is in its second-level cache, and little passes
// between cores. A left operand that is transposed has to be packed as well, the smaller one by all threads
// for all.
template <typename Unit>
struct Block {
  using Form = UnitOf<Unit>;
  using Source = typename Form::Source;
  static constexpr std::int64_t kTerms = Form::kTerms, kStrip = Form::kStrip, kPanel = Form::kPanel;

  const MatmulCall& call;
  std::int64_t row, rows, column, columns, from, depth;
  std::int64_t pieces;  // of rows, where each thread has one; or 0
  TaskSize size;

  std::int64_t m = call.c.rows(), n = call.c.columns(), k = call.k();
  std::int64_t units = count_of(depth, kTerms), strip = Form::strip_units(units);
  std::int64_t task_rows = pieces > 0 ? count_of(count_of(rows, pieces), kStrip) * kStrip : size.rows;
  std::int64_t groups = count_of(columns, size.columns), parts = count_of(rows, task_rows);
  std::int64_t panel = Form::panel_units(units);  // from one packed panel to the next
  bool own_left = owns_left(call);
  // Whether rows of the left operand are copied, as floats.
  bool widened = !call.transpose_a && size_of(call.a.dtype) != sizeof(Source);
  // Tasks that pack the left operand.
  std::int64_t wide = count_of(rows, kPackRows), deep = count_of(depth, kPackDepth);
  Unit *left = nullptr, *right = nullptr;  // packed by all
  float* sums = nullptr;                   // [rows, columns], where partial sums are kept
  const float* bias = nullptr;             // [n], or null

  static bool owns_left(const MatmulCall& call) {
    return call.transpose_a && call.c.rows() > call.c.columns();
  }
  std::int64_t units_of_left() const {
    return call.transpose_a ? count_of(rows, kStrip) * strip : rows * widened_row(depth);
  }
  std::int64_t units_of_right() const { return count_of(columns, kPanel) * panel; }
  std::int64_t left_tasks() const { return !own_left && (call.transpose_a || widened) ? wide * deep : 0; }
  std::int64_t right_tasks() const { return own_left ? groups : 0; }
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
    Unit* packed = own.memory.take<Unit>(own_units(size, units));
    if (own.packed != which) {
      if (own_left) {
        pack_left(packed, first_row, height(first_row), 0, depth);
      } else {
        pack_right(packed, group);
      }
      own.packed = which;
    }
    const Unit* rows_packed = own_left ? packed : left;
    if (call.transpose_a && !own_left) rows_packed += first_row / kStrip * strip;
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
      for (std::int64_t first = group * size.columns; first < end_of(group);
           first += kPanel, columns_packed += panel) {
        write(first_row, first, width(first), [&]<typename T>(T* to, std::int64_t stride, bool add) {
          multiply(Result<T>{to, stride, bias_of(first), add}, first_row, rows_packed, width(first),
                   columns_packed, own_next);
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
  // The rows that stand side by side in a packed left operand.
  static constexpr std::int64_t kRun = kTiles<Unit> ? 16 : kStrip;

  Unit* packed_right(std::int64_t group) const { return right + group * size.columns / kPanel * panel; }
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
      multiply_to(sums + first_row * columns + first, columns, from > 0);
      if (from + depth == k) write_sums(first_row, first, width);
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

  // What tile registers fetch: a piece of what the thread will pack next, and the strip of 32 of the other
  // operand behind the one that it multiplies.
  struct Fetches {
    const Block& block;
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
                const Unit* columns_packed, Prefetch& prefetch) const {
    const Right<Unit> b{columns_packed, round_up(width)};
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
    if (call.transpose_a) {
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
  const bool with_sums = call.c.dtype == DType::bf16 && k > deepest<Unit>(call.transpose_a);
  float* bias = nullptr;
  if (call.bias) {
    bias = bias_.take<float>(n);
    with_type(call.bias.dtype, [&]<typename T>() {
      for (std::int64_t i = 0; i < n; ++i) bias[i] = to_float(call.bias.as<T>()[i]);
    });
  }

  // A block is bounded by what all threads read, or by its sums.
  const bool own_left = Block<Unit>::owns_left(call);
  const bool small = !call.transpose_a && call.b.count() <= kSmallWeight;
  const std::int64_t most_columns = own_left || with_sums ? kColumns : n,
                     most_rows = own_left && !with_sums ? m : kRows;
  for_pieces(n, most_columns, [&](std::int64_t column, std::int64_t columns) {
    for_pieces(m, most_rows, [&](std::int64_t row, std::int64_t rows) {
      auto* sums = with_sums ? sums_.take<float>(rows * columns) : nullptr;
      const std::int64_t pieces = small && rows >= team_.size() * kOwnRows ? team_.size() : 0;
      for_pieces(
          k, even_piece(k, deepest<Unit>(call.transpose_a)), [&](std::int64_t from, std::int64_t depth) {
            const auto size =
                task_size<Unit>(own_left, rows, columns, count_of(depth, UnitOf<Unit>::kTerms), team_.size());
            Block<Unit> block{call, row, rows, column, columns, from, depth, pieces, size};
            block.sums = sums;
            block.bias = bias;
            if (block.right_tasks() > 0) {
              block.right = right_.take<Unit>(block.units_of_right());
              team_.run(block.right_tasks(), [&](std::int64_t task, int) { block.pack_right(task); });
            }
            if (block.left_tasks() > 0) {
              block.left = left_.take<Unit>(block.units_of_left());
              team_.run(block.left_tasks(), [&](std::int64_t task, int) { block.pack_left(task); });
            }
            for (auto& own : own_) own.packed = -1;
            const std::int64_t each = pieces > 0 ? block.groups : 1;
            team_.run(block.tasks() / each, [&](std::int64_t first, int member) {
              for (std::int64_t i = 0; i < each; ++i)
                block.multiply(i * block.parts + first, own_[static_cast<std::size_t>(member)]);
            });
          });
    });
  });
}

void PackedProduct::operator()(const MatmulCall& call) {
#ifdef __AVX512BF16__
  if (call.a.dtype == DType::bf16 && amx_) return multiply<TilePair>(call);
  if (suits_pairs(call)) return multiply<Pair>(call);
#endif
  multiply<float>(call);
}

bool PackedProduct::suits(DType type, bool amx) {
  constexpr bool kAvx2 = kLanes == 8;
  return type == DType::bf16 || kAvx2 || amx;
}

bool PackedProduct::suits(const MatmulCall& call) const {
  return suits(call.a.dtype, amx_) || call.transpose_b;
}

namespace {

// Units of 32 bits, or floats, of the packed operands and partial sums of all products of `sizes` in units.
template <typename Unit>
std::int64_t scratch_units(int threads, const KernelSizes& sizes) {
  using Form = UnitOf<Unit>;
  constexpr std::int64_t kTerms = Form::kTerms;
  const bool bf16 = sizes.compute == DType::bf16;
  const std::int64_t most = deepest<Unit>(false), most_of_weight = deepest<Unit>(true);
  const auto units = [&](std::int64_t k) { return count_of(std::min(most, k), kTerms); };
  const auto panels = [](std::int64_t columns) { return count_of(columns, Form::kPanel); };
  const std::int64_t rows = sizes.batch * sizes.positions, columns = sizes.columns, channels = sizes.channels;
  const std::int64_t widest = std::max(columns, sizes.classes), high = std::min(kRows, rows);
  // The sums of weights' gradients have a term for each row.
  const std::int64_t terms = std::max(rows, sizes.logit_rows),
                     summed = count_of(std::min(most_of_weight, terms), kTerms);
  const std::int64_t right = panels(std::min(kColumns, channels)) * Form::panel_units(summed);
  const std::int64_t strips = count_of(std::min(kRows, channels), Form::kStrip) * Form::strip_units(summed);
  // The left operands that are widened: rows of a layer or of Muon's square matrices, and of logits.
  const auto widened = [&](std::int64_t m, std::int64_t k) {
    return bf16 && kTerms == 1 ? std::min(kRows, m) * widened_row(std::min(most, k)) : 0;
  };
  const std::int64_t copied =
      std::max(widened(std::max(rows, channels), columns), widened(sizes.logit_rows, sizes.classes));
  std::int64_t own = 0;
  for (const std::int64_t deep : {units(channels), units(widest), summed})
    own = std::max(own, threads * Block<Unit>::own_units(most_of_task<Unit>(deep), deep));
  // Partial sums of results in bfloat16, which may be weights' gradients.
  const bool deep = sizes.gradients == DType::bf16 && terms > most_of_weight;
  const std::int64_t of_weights = deep ? std::min(kRows, widest) * std::min(kColumns, columns) : 0;
  const std::int64_t sums =
      std::max(bf16 && widest > most ? high * std::min(kColumns, columns) : 0, of_weights);
  return right + std::max(strips, copied) + own + sums + widest;
}

}  // namespace

std::size_t PackedProduct::scratch_bytes(int threads, const KernelSizes& sizes, bool amx) {
  std::int64_t units = 0;
  if (!suits(sizes.compute, amx)) {  // forward passes'
    units = threads * Block<float>::own_units(most_of_task<float>(0), std::min(kUnits, sizes.columns)) +
            sizes.columns;
  } else {
    units = scratch_units<float>(threads, sizes);
#ifdef __AVX512BF16__
    if (sizes.compute == DType::bf16)
      units = amx ? scratch_units<TilePair>(threads, sizes) : scratch_units<Pair>(threads, sizes);
#endif
  }
  return static_cast<std::size_t>(units) * sizeof(float);
}

}  // namespace shoal::cpu
