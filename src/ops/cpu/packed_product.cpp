#include "ops/cpu/packed_product.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "ops/cpu/product_block.h"
#include "ops/cpu/threads.h"
#include "ops/with_type.h"

namespace shoal::cpu {
namespace {

// A thread has one piece of the rows, and packs the whole right operand for itself, where that is a weight of
// so few elements at most and each thread gets so many rows at least. The rows are in its cache from the
// layer before. A task of some columns would read all rows, and threads whose cores share no cache would wait
// for each other's.
constexpr std::int64_t kSmallWeight = 128 << 10, kOwnRows = 2 * kTaskRows;
template <typename F>
void for_pieces(std::int64_t n, std::int64_t piece, F&& f) {
  for (std::int64_t begin = 0; begin < n; begin += piece) f(begin, std::min(piece, n - begin));
}

// The size of a piece where so few as possible are as equal as possible, in whole cache lines.
std::int64_t even_piece(std::int64_t n, std::int64_t most) {
  constexpr std::int64_t kLine = 32;
  return count_of(count_of(n, count_of(n, most)), kLine) * kLine;
}

// Whether the sums of a weight's gradient [m, n] are cut in halves, of which one goes beside the result and
// is added later. Each of two threads has half of both activations in its cache, so that whole sums pass k *
// (large / 2 + small) numbers between the caches, and halves m * n, here three times as much since they are
// written and read once more. Not with tile registers, where it was not measured.
template <typename Unit>
bool halves_sums(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kWorthwhile = 1 << 20, kLong = 128;  // terms of all sums: 10 to 20 us; of one
  const auto [small, large] = std::minmax(m, n);
  return !kTiles<Unit> && m * n * k >= kWorthwhile && k >= kLong && k * (large + 2 * small) > 6 * m * n;
}
template <typename Unit>
bool halves_sums(const MatmulCall& call) {
  return call.transpose_a && call.c.dtype == DType::f32 &&
         halves_sums<Unit>(call.c.rows(), call.c.columns(), call.k());
}

// Whether a product of bfloat16 is made of pairs: those along K are whole, or can be made so while they are
// packed.
[[maybe_unused]] bool suits_pairs(const MatmulCall& call) {
  return call.a.dtype == DType::bf16 && (call.k() % 2 == 0 || (call.transpose_a && !call.transpose_b));
}

}  // namespace

// Multiplies a block's terms, and the same ones of the second half of the sums, if there are any: each half
// begins with other threads.
template <typename Unit>
void PackedProduct::multiply_terms(ProductBlock<Unit>& first, ProductBlock<Unit>& second) {
  using Block = ProductBlock<Unit>;
  const auto for_tasks = [&](auto&& tasks_of, auto&& f) {
    const std::int64_t tasks = tasks_of(first);
    team_.run(tasks + (second.depth > 0 ? tasks_of(second) : 0), [&](std::int64_t task, int member) {
      task < tasks ? f(first, task, member) : f(second, task - tasks, member);
    });
  };
  if (first.right_tasks() > 0) {
    first.right = right_.take<Unit>(first.units_of_right() + second.units_of_right());
    second.right = first.right + first.units_of_right();
    for_tasks(std::mem_fn(&Block::right_tasks),
              [](const Block& block, std::int64_t task, int) { block.pack_right(task); });
  }
  if (first.left_tasks() > 0) {
    first.left = left_.take<Unit>(first.units_of_left() + second.units_of_left());
    second.left = first.left + first.units_of_left();
    for_tasks(std::mem_fn(&Block::left_tasks),
              [](const Block& block, std::int64_t task, int) { block.pack_left(task); });
  }
  for (auto& own : own_) own.packed = -1;
  const std::int64_t each = first.pieces > 0 ? first.groups : 1;
  for_tasks([&](const Block& block) { return block.tasks() / each; },
            [&](const Block& block, std::int64_t task, int member) {
              for (std::int64_t i = 0; i < each; ++i)
                block.multiply(i * block.parts + task, own_[static_cast<std::size_t>(member)]);
            });
}

template <typename Unit>
void PackedProduct::multiply(const MatmulCall& call) {
  const std::int64_t m = call.c.rows(), n = call.c.columns(), k = call.k();
  const bool halves = halves_sums<Unit>(call);
  const std::int64_t half = halves ? even_piece(k, count_of(k, 2)) : k;
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
  const bool own_left = ProductBlock<Unit>::owns_left(call);
  const bool small = !call.transpose_a && call.b.count() <= kSmallWeight;
  const std::int64_t most_columns = own_left || with_sums ? kBlockColumns : n,
                     most_rows = own_left && !with_sums ? m : kBlockRows;
  for_pieces(n, most_columns, [&](std::int64_t column, std::int64_t columns) {
    for_pieces(m, most_rows, [&](std::int64_t row, std::int64_t rows) {
      auto* sums = with_sums || halves ? sums_.take<float>(rows * columns) : nullptr;
      const std::int64_t pieces = small && rows >= team_.size() * kOwnRows ? team_.size() : 0;
      for_pieces(
          half, even_piece(half, deepest<Unit>(call.transpose_a)), [&](std::int64_t at, std::int64_t most) {
            const auto size =
                task_size<Unit>(own_left, rows, columns, count_of(most, UnitOf<Unit>::kTerms), team_.size());
            const auto block_of = [&](std::int64_t begin, float* to) {
              const std::int64_t from = begin + at, depth = std::clamp<std::int64_t>(k - from, 0, most);
              ProductBlock<Unit> block{call, row, rows, column, columns, begin, from, depth, pieces, size};
              block.sums = to;
              block.bias = bias;
              return block;
            };
            auto first = block_of(0, with_sums ? sums : nullptr), second = block_of(half, sums);
            multiply_terms(first, second);
          });
      if (!halves) return;
      constexpr std::int64_t kRows = 16;
      for_blocks(team_, rows, kRows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          float* to = call.c.as<float>() + (row + i) * n + column;
          for_lanes(columns, [&](std::int64_t j, std::int64_t live) {
            store_n(to + j, load_n(to + j, live) + load_n(sums + i * columns + j, live), live);
          });
        }
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
  const std::int64_t widest = std::max(columns, sizes.classes), high = std::min(kBlockRows, rows);
  // The sums of weights' gradients have a term for each row.
  const std::int64_t terms = std::max(rows, sizes.logit_rows),
                     summed = count_of(std::min(most_of_weight, terms), kTerms);
  // Halves of sums: both are packed at a time, and one goes beside the gradient.
  std::int64_t halved = 0;
  const auto layer = [&](std::int64_t out, std::int64_t in, std::int64_t of_rows) {
    if (halves_sums<Unit>(out, in, of_rows)) halved = std::max(halved, out * in);
  };
  const std::int64_t attended = sizes.heads * sizes.head_size;
  layer(3 * attended, channels, rows);
  layer(channels, attended, rows);
  layer(4 * attended, channels, rows);
  layer(channels, 4 * attended, rows);
  layer(sizes.classes, channels, sizes.logit_rows);
  const std::int64_t packed = halved > 0 ? 2 : 1;
  const std::int64_t right = packed * panels(std::min(kBlockColumns, channels)) * Form::panel_units(summed);
  const std::int64_t strips =
      packed * count_of(std::min(kBlockRows, channels), Form::kStrip) * Form::strip_units(summed);
  // The left operands that are widened: rows of a layer or of Muon's square matrices, and of logits.
  const auto widened = [&](std::int64_t m, std::int64_t k) {
    return bf16 && kTerms == 1 ? std::min(kBlockRows, m) * widened_row(std::min(most, k)) : 0;
  };
  const std::int64_t copied =
      std::max(widened(std::max(rows, channels), columns), widened(sizes.logit_rows, sizes.classes));
  std::int64_t own = 0;
  for (const std::int64_t deep : {units(channels), units(widest), summed})
    own = std::max(own, threads * ProductBlock<Unit>::own_units(most_of_task<Unit>(deep), deep));
  // Partial sums of results in bfloat16, which may be weights' gradients.
  const bool deep = sizes.gradients == DType::bf16 && terms > most_of_weight;
  const std::int64_t of_weights = deep ? std::min(kBlockRows, widest) * std::min(kBlockColumns, columns) : 0;
  const std::int64_t sums = std::max({bf16 && widest > most ? high * std::min(kBlockColumns, columns) : 0,
                                      of_weights, sizes.gradients == DType::f32 ? halved : 0});
  return right + std::max(strips, copied) + own + sums + widest;
}

}  // namespace

std::size_t PackedProduct::scratch_bytes(int threads, const KernelSizes& sizes, [[maybe_unused]] bool amx) {
  std::int64_t units = scratch_units<float>(threads, sizes);
#ifdef __AVX512BF16__
  if (sizes.compute == DType::bf16)
    units = amx ? scratch_units<TilePair>(threads, sizes) : scratch_units<Pair>(threads, sizes);
#endif
  return static_cast<std::size_t>(units) * sizeof(float);
}

}  // namespace shoal::cpu
