#include "parallel/data/gradient_reducer.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/data/gradient_tree.h"

namespace shoal {

GradientBuffers GradientBuffers::take(EngineArenas& arenas, const ShardPlan& plan, const EngineMode& mode,
                                      const EngineOptions& options) {
  // Sharded gradients may rest; whole ones are added to by kernels.
  auto& sums = options.zero >= 2 ? arenas.for_state(arenas.gradients, mode) : arenas.gradients;
  GradientBuffers b;
  b.whole = mode.shards_gradients ? UnitBuffers::in_turns(arenas.gradients, plan, options.gradients)
                                  : UnitBuffers::all(arenas.gradients, plan, options.gradients);
  if (mode.ordered) {
    const DType travel = options.travel();
    if (travel != options.gradients) b.sent = UnitBuffers::in_turns(arenas.exchange, plan, travel);
    if (plan.ranks() > 1) b.received = UnitBuffers::in_turns(arenas.exchange, plan, travel);
    b.tree = sums.take(DType::f32, {GradientTree::buffers(mode.leaves) * plan.total() / plan.ranks()});
  }
  if (mode.ordered ? plan.replicas() > 1 : mode.shards_gradients) {
    b.shards = sums.take(DType::f32, {plan.total() / plan.shards()});
  }
  return b;
}

GradientReducer::GradientReducer(const ReducerContext& context) : context_(context) {
  units_.resize(context.plan.units().size());
  over_replicas_.resize(units_.size());
  in_slot_.assign(static_cast<std::size_t>(context.buffers.whole.count()), -1);
  in_exchange_.assign(static_cast<std::size_t>(exchange().count()), -1);
}

void GradientReducer::begin_step(std::int64_t step) {
  finish();  // of a step that was given up
  step_ = step;
  for (auto& unit : units_) {
    unit.passes = 0;
    unit.open = false;
  }
  std::fill(in_slot_.begin(), in_slot_.end(), -1);
  forget();
}

GradientReducer::Gradient GradientReducer::gradient(int unit, std::span<const ElementRange> products) {
  auto& state = units_[static_cast<std::size_t>(unit)];
  const Tensor whole = context_.buffers.whole[unit];
  if (state.open) return {whole, false};
  auto& holder = in_slot_[static_cast<std::size_t>(context_.buffers.whole.slot(unit))];
  if (holder >= 0) complete(holder);
  const bool begins = holder != unit || context_.mode.shards_gradients;
  if (begins) zero_between(whole, products);
  holder = unit;
  state.open = true;
  return {whole, begins && !products.empty()};
}

void GradientReducer::zero_between(const Tensor& whole, std::span<const ElementRange> products) {
  std::int64_t from = 0;
  std::vector<Tensor> parts;
  const auto zero_until = [&](std::int64_t end) {
    if (from < end) parts.push_back(part_of(whole, from, end - from));
  };
  for (const auto& range : products) {
    zero_until(range.begin);
    from = range.end;
  }
  zero_until(whole.count());
  context_.backend.zero_each(parts);
}

void GradientReducer::ready(int unit) {
  auto& state = units_[static_cast<std::size_t>(unit)];
  state.open = false;
  if (++state.passes < context_.passes && !context_.mode.shards_gradients) return;
  if (exchange()) {
    auto& holder = in_exchange_[static_cast<std::size_t>(exchange().slot(unit))];
    if (holder >= 0) complete(holder);
    holder = unit;
  }
  state.request = start(unit);
  state.under_way = true;
}

const UnitBuffers& GradientReducer::exchange() const {
  return context_.buffers.sent ? context_.buffers.sent : context_.buffers.received;
}

void GradientReducer::complete(int unit) {
  auto& state = units_[static_cast<std::size_t>(unit)];
  if (!state.under_way) return;
  state.request.wait();
  state.under_way = false;
  done(unit, state.passes == context_.passes);
}

void GradientReducer::finish() {
  for (int unit = context_.plan.unit_count(); unit-- > 0;) complete(unit);
  for (auto& request : over_replicas_) request.wait();
}

Communicator& GradientReducer::group(std::unique_ptr<Communicator>& group, int unit) {
  group->set_purpose(fmt::format("step {}, gradients of {}", step_ + 1, context_.plan.unit(unit).name));
  return *group;
}

Tensor GradientReducer::shard_of(const Tensor& whole, int unit) const {
  return part_of(whole, context_.plan.my_shard(unit).begin, context_.plan.shard_size(unit));
}

}  // namespace shoal
