#include "ops/cpu/packed_product.h"

#include <algorithm>
#include <cstdint>

#include "ops/cpu/product_block.h"
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
  const bool own_left = ProductBlock<Unit>::owns_left(call);
  const bool small = !call.transpose_a && call.b.count() <= kSmallWeight;
  const std::int64_t most_columns = own_left || with_sums ? kBlockColumns : n,
                     most_rows = own_left && !with_sums ? m : kBlockRows;
  for_pieces(n, most_columns, [&](std::int64_t column, std::int64_t columns) {
    for_pieces(m, most_rows, [&](std::int64_t row, std::int64_t rows) {
      auto* sums = with_sums ? sums_.take<float>(rows * columns) : nullptr;
      const std::int64_t pieces = small && rows >= team_.size() * kOwnRows ? team_.size() : 0;
      for_pieces(
          k, even_piece(k, deepest<Unit>(call.transpose_a)), [&](std::int64_t from, std::int64_t depth) {
            const auto size =
                task_size<Unit>(own_left, rows, columns, count_of(depth, UnitOf<Unit>::kTerms), team_.size());
            ProductBlock<Unit> block{call, row, rows, column, columns, from, depth, pieces, size};
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
  const std::int64_t widest = std::max(columns, sizes.classes), high = std::min(kBlockRows, rows);
  // The sums of weights' gradients have a term for each row.
  const std::int64_t terms = std::max(rows, sizes.logit_rows),
                     summed = count_of(std::min(most_of_weight, terms), kTerms);
  const std::int64_t right = panels(std::min(kBlockColumns, channels)) * Form::panel_units(summed);
  const std::int64_t strips =
      count_of(std::min(kBlockRows, channels), Form::kStrip) * Form::strip_units(summed);
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
  const std::int64_t sums =
      std::max(bf16 && widest > most ? high * std::min(kBlockColumns, columns) : 0, of_weights);
  return right + std::max(strips, copied) + own + sums + widest;
}

}  // namespace

std::size_t PackedProduct::scratch_bytes(int threads, const KernelSizes& sizes, bool amx) {
  std::int64_t units = 0;
  if (!suits(sizes.compute, amx)) {  // forward passes'
    units = threads *
                ProductBlock<float>::own_units(most_of_task<float>(0), std::min(kBlockUnits, sizes.columns)) +
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
