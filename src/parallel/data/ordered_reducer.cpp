#include "parallel/data/gradient_reducer.h"
#include "parallel/data/gradient_tree.h"

namespace shoal {
namespace {

class OrderedReducer final : public GradientReducer {
 public:
  explicit OrderedReducer(const ReducerContext& context)
      : GradientReducer(context),
        tree_(context.stream, context.plan, context.mode.leaves, context.buffers.tree),
        leaves_(context.plan.units().size()) {}

  Tensor reduced(int unit) override {
    const auto& plan = context_.plan;
    if (plan.replicas() == 1) return tree_.sum(unit);
    return part_of(context_.buffers.shards, plan.first(unit) / plan.shards(), plan.shard_size(unit));
  }

 private:
  // The leaf of this pass, in the type that it travels in.
  Tensor leaf(int unit) const {
    return context_.buffers.sent ? context_.buffers.sent[unit] : context_.buffers.whole[unit];
  }

  Request start(int unit) override {
    if (context_.buffers.sent) context_.backend.convert(leaf(unit), context_.buffers.whole[unit]);
    if (context_.plan.ranks() == 1) return {};
    return group(context_.groups.pieces, unit).all_to_all(context_.buffers.received[unit], leaf(unit));
  }

  void done(int unit, bool last_pass) override {
    const auto& plan = context_.plan;
    const Tensor received = plan.ranks() == 1 ? leaf(unit) : context_.buffers.received[unit];
    auto& leaves = leaves_[static_cast<std::size_t>(unit)];
    // In the last pass some ranks may have had no micro-batch any more.
    for (int rank = 0; rank < plan.ranks() && leaves < context_.mode.leaves; ++rank, ++leaves) {
      tree_.add(unit, part_of(received, rank * plan.piece_size(unit), plan.piece_size(unit)));
    }
    if (!last_pass || plan.replicas() == 1) return;
    over_replicas_[static_cast<std::size_t>(unit)] =
        group(context_.groups.replicas, unit)
            .all_gather(reduced(unit), context_.stream.settled(tree_.sum(unit)));
  }

  void forget() override {
    tree_.begin_step();
    leaves_.assign(leaves_.size(), 0);
  }

  GradientTree tree_;
  std::vector<int> leaves_;  // of each unit, so far
};

}  // namespace

std::unique_ptr<GradientReducer> make_ordered_reducer(const ReducerContext& context) {
  return std::make_unique<OrderedReducer>(context);
}

}  // namespace shoal
