#include "parallel/data/unit_buffers.h"

#include <algorithm>

namespace shoal {

UnitBuffers UnitBuffers::all(Arena& arena, const ShardPlan& plan, DType dtype) {
  UnitBuffers result;
  const Tensor flat = arena.take(dtype, {plan.total()});
  for (int u = 0; u < plan.unit_count(); ++u) {
    result.buffers_.push_back(part_of(flat, plan.first(u), plan.padded(u)));
    result.slots_.push_back(u);
    result.sizes_.push_back(plan.padded(u));
  }
  return result;
}

UnitBuffers UnitBuffers::in_turns(Arena& arena, const ShardPlan& plan, DType dtype) {
  UnitBuffers result;
  const int blocks = plan.blocks(), turns = std::min(blocks, 2);
  std::vector<std::int64_t> largest(static_cast<std::size_t>(plan.unit_count() - blocks + turns));
  for (int u = 0; u < plan.unit_count(); ++u) {
    const bool block = u > 0 && u <= blocks;
    const int slot = block ? 1 + (u - 1) % turns : u == 0 ? 0 : u - blocks + turns;
    result.slots_.push_back(slot);
    result.sizes_.push_back(plan.padded(u));
    auto& size = largest[static_cast<std::size_t>(slot)];
    size = std::max(size, plan.padded(u));
  }
  for (const auto size : largest) result.buffers_.push_back(arena.take(dtype, {size}));
  return result;
}

Tensor UnitBuffers::operator[](int unit) const {
  return part_of(buffers_[static_cast<std::size_t>(slot(unit))], 0, sizes_[static_cast<std::size_t>(unit)]);
}

}  // namespace shoal
