#include "parallel/data/weight_store.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace shoal {

WeightBuffers WeightBuffers::take(EngineArenas& arenas, const ShardPlan& plan, const EngineMode& mode,
                                  DType compute) {
  const std::int64_t shards = plan.total() / plan.shards();
  WeightBuffers b;
  if (mode.separate_compute) b.master = arenas.for_state(arenas.weights, mode).take(DType::f32, {shards});
  if (!mode.gathers_weights) {
    b.whole = UnitBuffers::all(mode.separate_compute ? arenas.compute : arenas.weights, plan, compute);
    return b;
  }
  b.whole = UnitBuffers::in_turns(arenas.compute, plan, compute);
  if (compute == DType::f32) return b;
  // On disk and without GPU memory, the parameters for the products stay in memory.
  b.shards = (mode.on_host ? arenas.for_state(arenas.compute, mode) : arenas.compute).take(compute, {shards});
  return b;
}

WeightStore::WeightStore(Backend& backend, Communicator& shards, const ShardPlan& plan,
                         const WeightBuffers& buffers, const EngineMode& mode, StateStream& stream)
    : backend_(backend), shards_(shards), plan_(plan), buffers_(buffers), mode_(mode), stream_(stream) {
  slots_.resize(static_cast<std::size_t>(buffers.whole.count()));
  if (!mode.on_host || !mode.gathers_weights) return;
  for (auto& place : slots_) place.brought = backend.make_event();
}

Tensor WeightStore::master(int unit) const {
  if (!buffers_.master) {
    return part_of(buffers_.whole[unit], plan_.my_shard(unit).begin, plan_.shard_size(unit));
  }
  return part_of(buffers_.master, plan_.first(unit) / plan_.shards(), plan_.shard_size(unit));
}

Tensor WeightStore::shard_for_products(int unit) const {
  if (!mode_.gathers_weights) {
    return part_of(buffers_.whole[unit], plan_.my_shard(unit).begin, plan_.shard_size(unit));
  }
  if (!buffers_.shards) return master(unit);
  return part_of(buffers_.shards, plan_.first(unit) / plan_.shards(), plan_.shard_size(unit));
}

Tensor WeightStore::copy(int unit) const {
  const Tensor shard = shard_for_products(unit);
  return shard.data == master(unit).data ? Tensor{} : shard;
}

void WeightStore::settle() {
  for (auto& place : slots_) place.coming.wait();
}

void WeightStore::changed(int unit, bool converted) {
  if (const Tensor to = copy(unit); to && !converted) stream_.convert(to, master(unit));
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
  const Tensor whole = buffers_.whole[unit];
  Tensor mine = shard_for_products(unit);
  if (stream_.rests(mine)) {
    const Tensor here = part_of(whole, plan_.my_shard(unit).begin, plan_.shard_size(unit));
    stream_.bring(here, mine, *place.brought);
    if (shards_.size() == 1) return;  // kernels wait for it where they use it
    backend_.wait(Backend::Stream::kernels, *place.brought);
    mine = here;
  }
  place.coming = shards_.all_gather(whole, mine);
}

// Backward passes use neither the embedding's parameters nor, but for the head, any above the last used ones.
int WeightStore::after(int unit) const {
  const int head = plan_.head();
  const int next = unit == 0 ? (last_ == head ? 0 : 1) : unit > last_ ? std::min(unit + 1, head) : unit - 1;
  return (unit > 0 && unit == last_) || plan_.padded(next) == 0 ? -1 : next;
}

void WeightStore::gather_ahead() {
  const int unit = std::exchange(ahead_, -1);
  if (unit >= 0 && !slot(unit).used) gather(unit);
}

UnitView WeightStore::use(int unit) {
  gather(unit);
  auto& place = slot(unit);
  place.coming.wait();
  place.used = true;
  if (place.brought) backend_.wait(Backend::Stream::kernels, *place.brought);
  if (unit <= plan_.head()) {  // an adapter has a buffer of its own: it is gathered once a step
    if (mode_.gathers_weights) ahead_ = after(unit);
    if (!stream_.keeps_host_busy()) gather_ahead();
    if (unit != 0) last_ = unit;
  }
  const auto& spec = plan_.unit(unit);
  return {.spec = &spec, .flat = part_of(buffers_.whole[unit], 0, spec.size), .int8 = int8_};
}

void WeightStore::to_int8() {
  plan_.for_units([&](int unit) {
    const auto view = use(unit);
    auto packed = view;
    packed.int8 = true;
    for (const auto& parameter : view.spec->parameters) {
      if (parameter.product()) backend_.to_int8(packed[parameter.slice()], view[parameter.slice()]);
    }
    release(unit);
  });
  int8_ = true;
}

void WeightStore::release(int unit) {
  slot(unit).used = false;
  if (stream_.keeps_host_busy()) gather_ahead();  // now the backend has work to do meanwhile
}

}  // namespace shoal
