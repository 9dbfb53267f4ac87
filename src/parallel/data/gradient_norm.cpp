#include "parallel/data/gradient_norm.h"

#include <fmt/format.h>

#include <algorithm>

namespace shoal {

NormBuffers NormBuffers::take(Arena& arena, const ShardPlan& plan, int tensor_ranks) {
  return {.squares = arena.take(DType::f64, {1}),
          .block_squares = arena.take(DType::f64, {plan.total() / plan.ranks() / ShardPlan::kBlock}),
          .all_block_squares = arena.take(DType::f64, {plan.total() / ShardPlan::kBlock}),
          .unit_squares = arena.take(DType::f64, {plan.unit_count(), tensor_ranks})};
}

void GradientNorm::begin_step() {
  backend_.zero(buffers_.block_squares);
  added_.assign(static_cast<std::size_t>(plan_.unit_count()), false);
}

void GradientNorm::add(GradientReducer& reducer, int unit) {
  added_[static_cast<std::size_t>(unit)] = true;
  const auto piece = plan_.my_piece(unit);
  add_part(unit, piece, part_of(reducer.reduced(unit), plan_.replica() * piece.count(), piece.count()));
}

// Adds squares, block by block. Elements that all tensor ranks hold count on the first.
void GradientNorm::add_part(int unit, const ElementRange& here, const Tensor& x) {
  const auto piece = plan_.my_piece(unit);
  const Tensor totals = part_of(buffers_.block_squares, first_block(unit), blocks_of(unit));
  const auto add_range = [&](const ElementRange& range) {
    for (std::int64_t at = range.begin; at < range.end;) {
      const std::int64_t in_block = at % ShardPlan::kBlock;
      const std::int64_t blocks = in_block > 0 ? 0 : (range.end - at) / ShardPlan::kBlock;
      const std::int64_t n =
          blocks > 0 ? blocks * ShardPlan::kBlock : std::min(range.end - at, ShardPlan::kBlock - in_block);
      stream_.sum_squares(
          part_of(totals, (at - piece.begin) / ShardPlan::kBlock, std::max<std::int64_t>(blocks, 1)),
          part_of(x, at - here.begin, n));
      at += n;
    }
  };
  if (part_.tensor.rank == 0) return add_range(here);
  const auto& common = plan_.unit(unit).replicated;
  add_range(here & ElementRange{0, common.begin});
  add_range(here & ElementRange{common.end, plan_.padded(unit)});
}

// From the data ranks' blocks, or this one's where it is alone, to one number per unit.
void GradientNorm::add_units() {
  const Tensor& all = pieces_.size() > 1 ? buffers_.all_block_squares : buffers_.block_squares;
  const Tensor& totals = buffers_.unit_squares;
  const std::int64_t blocks_here = buffers_.block_squares.count();
  for (int u = 0; u < plan_.unit_count(); ++u) {
    const std::int64_t blocks = blocks_of(u);
    if (blocks > 0 && part_.computes(plan_.unit(u).home)) {
      const Tensor pieces{all.as<double>() + first_block(u), DType::f64, {plan_.ranks(), blocks_here}};
      backend_.sum_rows(part_of(totals, u * totals.columns() + part_.tensor.rank, 1), pieces, blocks);
    }
  }
}

void GradientNorm::measure(GradientReducer& reducer, std::int64_t step) {
  plan_.for_units([&](int u) {
    if (!added_[static_cast<std::size_t>(u)]) add(reducer, u);
  });
  sum(fmt::format("step {}, norm of the gradient", step + 1));
}

void GradientNorm::sum(const std::string& purpose) {
  pieces_.set_purpose(purpose);
  if (pieces_.size() > 1) pieces_.all_gather(buffers_.all_block_squares, buffers_.block_squares).wait();
  backend_.zero(buffers_.unit_squares);
  add_units();
  // The sum over the ranks of the model.
  mesh_.model().set_purpose(purpose);
  mesh_.model().all_reduce(buffers_.unit_squares).wait();
  backend_.zero(buffers_.squares);
  const std::int64_t count = buffers_.unit_squares.count();
  backend_.sum_rows(buffers_.squares, buffers_.unit_squares.reshaped({1, count}), count);
}

}  // namespace shoal
