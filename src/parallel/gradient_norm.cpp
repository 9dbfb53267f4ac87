#include "parallel/gradient_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace shoal {

// Of this rank's piece of a unit, block by block; what tensor ranks have in common counts on the first.
void GradientNorm::add_squares(const Tensor& totals, const Tensor& reduced, int unit) {
  const auto piece = plan_.my_piece(unit);
  const Tensor x = part_of(reduced, plan_.replica() * piece.count(), piece.count());
  const auto add = [&](const ElementRange& range) {
    for (std::int64_t at = range.begin; at < range.end;) {
      const std::int64_t in_block = at % ShardPlan::kBlock;
      const std::int64_t blocks = in_block > 0 ? 0 : (range.end - at) / ShardPlan::kBlock;
      const std::int64_t n =
          blocks > 0 ? blocks * ShardPlan::kBlock : std::min(range.end - at, ShardPlan::kBlock - in_block);
      stream_.sum_squares(
          part_of(totals, (at - piece.begin) / ShardPlan::kBlock, std::max<std::int64_t>(blocks, 1)),
          part_of(x, at - piece.begin, n));
      at += n;
    }
  };
  if (part_.tensor.rank == 0) return add(piece);
  const auto& common = plan_.unit(unit).replicated;
  add(piece & ElementRange{0, common.begin});
  add(piece & ElementRange{common.end, plan_.padded(unit)});
}

// Of the data ranks' blocks, or of this one's where it is alone.
std::vector<double> GradientNorm::of_units(std::int64_t blocks_here) {
  const Tensor& all = pieces_.size() > 1 ? buffers_.all_block_squares : buffers_.block_squares;
  std::vector<double> parts(static_cast<std::size_t>(all.count()));
  backend_.copy_to_host(parts.data(), all);
  std::vector<double> squares(plan_.units().size());
  std::int64_t before = 0;  // blocks of the units before, in one rank's part
  for (int u = 0; u < plan_.unit_count(); ++u) {
    const std::int64_t blocks = plan_.piece_size(u) / ShardPlan::kBlock;
    for (int piece = 0; piece < plan_.ranks() && part_.computes(u); ++piece) {
      const auto* part = parts.data() + piece * blocks_here + before;
      for (std::int64_t i = 0; i < blocks; ++i) squares[static_cast<std::size_t>(u)] += part[i];
    }
    before += blocks;
  }
  return squares;
}

// Of the model's ranks, however many stages there are.
double GradientNorm::whole(const std::vector<double>& unit_squares) {
  const auto& place = part_.tensor;
  std::vector<double> all(unit_squares.size() * static_cast<std::size_t>(place.size));
  for (std::size_t u = 0; u < unit_squares.size(); ++u) {
    all[u * static_cast<std::size_t>(place.size) + static_cast<std::size_t>(place.rank)] = unit_squares[u];
  }
  mesh_.model().all_reduce({all.data(), DType::f64, {static_cast<std::int64_t>(all.size())}}).wait();
  return std::accumulate(all.begin(), all.end(), 0.0);
}

double GradientNorm::of_model(GradientReducer& reducer, std::int64_t step) {
  backend_.zero(buffers_.block_squares);
  std::int64_t first = 0;
  plan_.for_units([&](int u) {
    const std::int64_t blocks = plan_.piece_size(u) / ShardPlan::kBlock;
    add_squares(part_of(buffers_.block_squares, first, blocks), reducer.reduced(u), u);
    first += blocks;
  });
  const auto purpose = fmt::format("step {}, norm of the gradient", step + 1);
  pieces_.set_purpose(purpose);
  if (pieces_.size() > 1) pieces_.all_gather(buffers_.all_block_squares, buffers_.block_squares).wait();
  mesh_.model().set_purpose(purpose);
  const double squares = whole(of_units(first));
  backend_.copy_from_host(buffers_.squares, &squares);
  return std::sqrt(squares);
}

}  // namespace shoal
