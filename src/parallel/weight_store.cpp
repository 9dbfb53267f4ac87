#include "parallel/weight_store.h"

#include <algorithm>

#include "core/error.h"

namespace shoal {

WeightStore::WeightStore(Backend& backend, Communicator& shards, const ShardPlan& plan,
                         const EngineBuffers& buffers, const EngineMode& mode)
    : backend_(backend), shards_(shards), plan_(plan), buffers_(buffers), mode_(mode) {
  slots_.resize(static_cast<std::size_t>(buffers.compute.count()));
}

Tensor WeightStore::master(int unit) const {
  if (!buffers_.master) {
    return part_of(buffers_.compute[unit], plan_.my_shard(unit).begin, plan_.shard_size(unit));
  }
  return part_of(buffers_.master, plan_.first(unit) / plan_.shards(), plan_.shard_size(unit));
}

Tensor WeightStore::shard_for_products(int unit) const {
  if (!mode_.gathers_weights) {
    return part_of(buffers_.compute[unit], plan_.my_shard(unit).begin, plan_.shard_size(unit));
  }
  if (!buffers_.compute_shards) return master(unit);
  return part_of(buffers_.compute_shards, plan_.first(unit) / plan_.shards(), plan_.shard_size(unit));
}

Tensor WeightStore::copy(int unit) const {
  const Tensor shard = shard_for_products(unit);
  return shard.dtype == DType::f32 ? Tensor{} : shard;
}

void WeightStore::settle() {
  for (auto& place : slots_) place.coming.wait();
}

void WeightStore::changed(int unit, bool converted) {
  const Tensor from = master(unit), to = shard_for_products(unit);
  if (to.data != from.data && !(converted && copy(unit))) backend_.convert(to, from);
  auto& place = slot(unit);
  if (place.unit == unit) place.unit = -1;
  // The embedding has a buffer of its own and comes first, so it is not waited for.
  if (!mode_.gathers_weights || unit == 0) gather(unit);
}

void WeightStore::gather(int unit) {
  auto& place = slot(unit);
  if (place.unit == unit) return;
  if (place.used) fail("units {} and {} are used at the same time", place.unit, unit);
  place.coming.wait();  // of a unit that was gathered ahead and not used after all
  shards_.set_purpose(fmt::format("step {}, parameters of {}", step_ + 1, plan_.unit(unit).name));
  place.unit = unit;
  place.coming = shards_.all_gather(buffers_.compute[unit], shard_for_products(unit));
}

// Backward passes use neither the embedding's parameters nor, but for the head, any above the last used ones.
void WeightStore::gather_ahead(int unit) {
  const int head = plan_.unit_count() - 1;
  const int next = unit == 0 ? (last_ == head ? 0 : 1) : unit > last_ ? std::min(unit + 1, head) : unit - 1;
  if (unit == last_ || plan_.padded(next) == 0 || slot(next).used) return;
  gather(next);
}

UnitView WeightStore::use(int unit) {
  gather(unit);
  auto& place = slot(unit);
  place.coming.wait();
  place.used = true;
  if (mode_.gathers_weights) gather_ahead(unit);
  if (unit != 0) last_ = unit;
  const auto& spec = plan_.unit(unit);
  return {&spec, part_of(buffers_.compute[unit], 0, spec.size)};
}

}  // namespace shoal
