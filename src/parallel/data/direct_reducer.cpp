#include "parallel/data/gradient_reducer.h"

namespace shoal {
namespace {

class DirectReducer final : public GradientReducer {
 public:
  using GradientReducer::GradientReducer;

  Tensor reduced(int unit) override {
    const auto& plan = context_.plan;
    if (!context_.mode.shards_gradients) return shard_of(context_.buffers.whole[unit], unit);
    return part_of(context_.buffers.shards, plan.first(unit) / plan.shards(), plan.shard_size(unit));
  }

 private:
  Request start(int unit) override {
    auto& groups = context_.groups;
    const Tensor whole = context_.buffers.whole[unit];
    if (context_.plan.shards() == 1) return group(groups.pieces, unit).all_reduce(whole);
    return group(groups.shards, unit).reduce_scatter(shard_of(whole, unit), whole);
  }

  void done(int unit, bool last_pass) override {
    if (context_.mode.shards_gradients) {
      const Tensor of_pass = shard_of(context_.buffers.whole[unit], unit);
      // The first pass of a step sets the sum, the others add to it.
      auto& begun = begun_[static_cast<std::size_t>(unit)];
      begun ? context_.stream.add(reduced(unit), of_pass) : context_.stream.convert(reduced(unit), of_pass);
      begun = true;
    }
    const auto& plan = context_.plan;
    if (!last_pass || plan.shards() == 1 || plan.replicas() == 1) return;
    over_replicas_[static_cast<std::size_t>(unit)] =
        group(context_.groups.replicas, unit).all_reduce(context_.stream.settled(reduced(unit)));
  }

  void forget() override { begun_.assign(context_.plan.units().size(), false); }

  std::vector<char> begun_;
};

}  // namespace

std::unique_ptr<GradientReducer> make_direct_reducer(const ReducerContext& context) {
  return std::make_unique<DirectReducer>(context);
}

}  // namespace shoal
