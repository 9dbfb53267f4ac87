#include "parallel/data/optimizer_state.h"

#include <algorithm>

namespace shoal {

OptimizerState::OptimizerState(Arena& arena, const ShardPlan& trained, bool of_matrices)
    : of_matrices_(of_matrices) {
  std::int64_t total = 0;
  for (int u = 0; u < trained.unit_count(); ++u) {
    firsts_.push_back(total);
    const std::int64_t others = trained.padded(u) - (of_matrices ? 0 : trained.unit(u).matrices);
    total += std::min(trained.shard_size(u), std::max<std::int64_t>(others, 0));  // on any rank
  }
  all_ = arena.take(DType::f32, {total});
}

ElementRange OptimizerState::held(const ShardPlan& trained, int unit) const {
  return trained.my_shard(unit) &
         ElementRange{of_matrices_ ? 0 : trained.unit(unit).matrices, trained.padded(unit)};
}

Tensor OptimizerState::part(const ShardPlan& trained, int unit, const ElementRange& range) const {
  const std::int64_t first = firsts_[static_cast<std::size_t>(unit)];
  return part_of(all_, first + range.begin - held(trained, unit).begin, range.count());
}

}  // namespace shoal
