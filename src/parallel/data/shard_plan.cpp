#include "parallel/data/shard_plan.h"

#include <algorithm>

#include "core/error.h"

namespace shoal {

ShardPlan::ShardPlan(std::vector<UnitSpec> units, int zero, int replicate, int rank, int ranks)
    : units_(std::make_shared<const std::vector<UnitSpec>>(std::move(units))),
      blocks_(static_cast<int>(std::ranges::count(*units_, false, &UnitSpec::adapter)) - 2),
      rank_(rank),
      ranks_(ranks),
      replicas_(zero == 0 ? ranks : replicate) {
  if (replicas_ < 1 || ranks_ % replicas_ != 0) {
    fail("groups of {} replicas do not divide the {} data ranks", replicas_, ranks_);
  }
  const std::int64_t align = kBlock * ranks_;
  firsts_.push_back(0);
  for (const auto& unit : *units_) {
    padded_.push_back((unit.size + align - 1) / align * align);
    firsts_.push_back(firsts_.back() + padded_.back());
  }
}

ShardPlan ShardPlan::trained() const {
  ShardPlan plan = *this;
  plan.firsts_ = {0};
  for (std::size_t u = 0; u < units_->size(); ++u) {
    if (!(*units_)[u].trained) plan.padded_[u] = 0;
    plan.firsts_.push_back(plan.firsts_.back() + plan.padded_[u]);
  }
  return plan;
}

ShardPlan ShardPlan::with_tied_use() const {
  ShardPlan plan = *this;
  auto units = *units_;
  units.push_back(units.front());
  units.back().name = "embedding in the head";
  plan.units_ = std::make_shared<const std::vector<UnitSpec>>(std::move(units));
  plan.padded_.push_back(padded_.front());
  plan.firsts_.push_back(firsts_.back() + padded_.front());
  return plan;
}

ElementRange ShardPlan::my_shard(int unit) const {
  const std::int64_t size = shard_size(unit);
  return {shard() * size, (shard() + 1) * size};
}

ElementRange ShardPlan::my_piece(int unit) const {
  const std::int64_t size = piece_size(unit);
  return {piece() * size, (piece() + 1) * size};
}

Tensor part_of(const Tensor& flat, std::int64_t first, std::int64_t count) {
  if (!flat) return {};
  return {flat.as<std::byte>() + static_cast<std::size_t>(first) * size_of(flat.dtype), flat.dtype, {count}};
}

}  // namespace shoal
