// Buffers of whole units.
#pragma once

#include <vector>

#include "model/arena.h"
#include "parallel/data/shard_plan.h"

namespace shoal {

// Either one buffer for each unit, or, where units come and go, two that the blocks use in turns and one for
// each other unit.
class UnitBuffers {
 public:
  UnitBuffers() = default;
  static UnitBuffers all(Arena& arena, const ShardPlan& plan, DType dtype);
  static UnitBuffers in_turns(Arena& arena, const ShardPlan& plan, DType dtype);

  explicit operator bool() const { return !buffers_.empty(); }
  int count() const { return static_cast<int>(buffers_.size()); }
  // The number of the buffer that a unit uses.
  int slot(int unit) const { return slots_[static_cast<std::size_t>(unit)]; }
  // The unit's buffer, [padded size of the unit].
  Tensor operator[](int unit) const;

 private:
  std::vector<Tensor> buffers_;
  std::vector<int> slots_;
  std::vector<std::int64_t> sizes_;
};

}  // namespace shoal
