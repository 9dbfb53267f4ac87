// A tensor that is kept beside each parameter that is trained, or beside each but the hidden matrices.
#pragma once

#include <vector>

#include "model/arena.h"
#include "parallel/data/shard_plan.h"

namespace shoal {

class OptimizerState {
 public:
  OptimizerState(Arena& arena, const ShardPlan& trained, bool of_matrices = true);

  bool of_matrices() const { return of_matrices_; }
  const Tensor& all() const { return all_; }  // f32
  // The elements of a unit's buffer that this rank has.
  ElementRange held(const ShardPlan& trained, int unit) const;
  // A range of them.
  Tensor part(const ShardPlan& trained, int unit, const ElementRange& range) const;
  Tensor shard(const ShardPlan& trained, int unit) const { return part(trained, unit, held(trained, unit)); }

 private:
  bool of_matrices_;
  std::vector<std::int64_t> firsts_;  // of each unit in all_
  Tensor all_;
};

}  // namespace shoal
