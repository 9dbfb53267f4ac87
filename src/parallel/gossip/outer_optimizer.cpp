#include "parallel/gossip/outer_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "parallel/gossip/rounds.h"

namespace shoal {
namespace {

constexpr std::size_t kModel = 0, kMomentum = 1, kUnsent = 2;  // in kOuterStates

// Numbers of a block that are sent.
std::int64_t sparse_count(const OuterSent& sent) {
  return std::max<std::int64_t>(1, std::llround(sent.share * static_cast<double>(kSparseBlock)));
}

}  // namespace

OuterBuffers OuterBuffers::take(Arena& resting, Arena& exchange, const ShardPlan& plan,
                                const OuterOptions& options, int workers) {
  OuterBuffers b;
  for (std::size_t i = 0; i < outer_states(options); ++i) b.state.emplace_back(resting, plan);
  std::int64_t largest = 0;
  plan.for_units([&](int u) { largest = std::max(largest, plan.shard_size(u)); });
  if (options.sent.kind == OuterSent::Kind::bfloat16) b.sent = exchange.take(DType::bf16, {largest});
  if (options.sent.kind == OuterSent::Kind::largest) {
    const std::int64_t taken = largest / kSparseBlock * sparse_count(options.sent);
    b.sent = exchange.take(DType::i32, {taken});
    if (workers > 1) b.received = exchange.take(DType::i32, {workers * taken});
  }
  return b;
}

OuterOptimizer::OuterOptimizer(StateStream& stream, Backend& backend, Communicator& peers,
                               const Topology* topology, const ShardPlan& plan, WeightStore& weights,
                               const OuterBuffers& buffers, const OuterOptions& options)
    : stream_(stream),
      backend_(backend),
      plan_(plan),
      weights_(weights),
      buffers_(buffers),
      options_(options) {
  if (peers.size() == 1) return;
  rounds_ = split_rounds(peers, *topology);
  of_all_ = std::ranges::all_of(topology->rounds, [](const auto& round) { return round.size() == 1; });
}

void OuterOptimizer::begin() {
  for (const auto& state : buffers_.state) stream_.zero(state.all());
  plan_.for_units([&](int u) { stream_.convert(state(kModel).shard(plan_, u), weights_.master(u)); });
  equal_ = true;
}

void OuterOptimizer::step(GradientReducer& reducer, std::int64_t step) {
  equal_ = rounds_.empty();
  if ((step + 1) % options_.interval != 0) return;
  weights_.settle();
  Communicator* group = nullptr;
  if (!rounds_.empty()) {
    const std::int64_t round = (step + 1) / options_.interval - 1;
    group = rounds_[static_cast<std::size_t>(round % std::ssize(rounds_))].get();
  }
  const bool whole = options_.sent.kind == OuterSent::Kind::all, alone = !group || group->size() == 1;
  std::vector<Request> sums;
  plan_.for_units([&](int u) {
    const Tensor movement = reducer.reduced(u);
    stream_.scale(movement, weights_.master(u), -1);
    stream_.add(movement, state(kModel).shard(plan_, u));
    if (!whole || alone) return;
    set_purpose(*group, step, u);
    sums.push_back(group->all_reduce(stream_.settled(movement)));
  });
  for (auto& sum : sums) sum.wait();
  plan_.for_units([&](int u) {
    const Tensor movement = reducer.reduced(u);
    if (!whole && !alone) set_purpose(*group, step, u);
    if (!whole) exchange(alone ? nullptr : group, movement, u);
    if (!alone) stream_.scale(movement, movement, 1.0f / static_cast<float>(group->size()));
    move(u, movement);
    weights_.changed(u, false);
  });
  equal_ = of_all_;
}

void OuterOptimizer::set_purpose(Communicator& group, std::int64_t step, int unit) const {
  group.set_purpose(fmt::format("step {}, movement of {}", step + 1, plan_.unit(unit).name));
}

// The movement becomes the sum of what the group sends of its members'. Without a group it is what this
// worker would send.
void OuterOptimizer::exchange(Communicator* group, const Tensor& movement, int unit) {
  const Tensor rest = state(kUnsent).shard(plan_, unit);
  stream_.add(rest, movement);
  if (options_.sent.kind == OuterSent::Kind::bfloat16) {
    const Tensor sent = part_of(buffers_.sent, 0, movement.count());
    stream_.convert(sent, rest);
    stream_.convert(movement, sent);
    stream_.each({StateStream::in_out(rest), StateStream::in_out(movement)}, [&](auto x, std::int64_t) {
      backend_.scale(x[1], x[1], -1);
      backend_.add(x[0], x[1]);
    });
    if (group) group->all_reduce(sent).wait();
    return stream_.convert(movement, sent);
  }
  const std::int64_t blocks = movement.count() / kSparseBlock, count = sparse_count(options_.sent);
  const auto taken = [&](const Tensor& memory, std::int64_t from) {
    return part_of(memory, from * blocks * count, blocks * count).reshaped({blocks, count});
  };
  const Tensor sent = taken(buffers_.sent, 0);
  stream_.each(
      {StateStream::in_out(rest)},
      [&](auto x, std::int64_t first) {
        const std::int64_t here = x[0].count() / kSparseBlock;
        backend_.take_largest(sent.row_range(first / kSparseBlock, here), x[0]);
      },
      kSparseBlock);
  const int members = group ? group->size() : 1;
  Tensor all = sent;
  if (group) {
    all = part_of(buffers_.received, 0, members * sent.count());
    group->all_gather(all, sent.reshaped({sent.count()})).wait();
  }
  stream_.zero(movement);
  stream_.each(
      {StateStream::in_out(movement)},
      [&](auto x, std::int64_t first) {
        const std::int64_t here = x[0].count() / kSparseBlock;
        for (int member = 0; member < members; ++member)
          backend_.add_taken(x[0], taken(all, member).row_range(first / kSparseBlock, here), 1);
      },
      kSparseBlock);
}

// PyTorch's SGD: m = momentum m + d; the model moves against m, or with Nesterov's against d + momentum m.
void OuterOptimizer::move(int unit, const Tensor& movement) {
  const auto momentum = static_cast<float>(options_.momentum), rate = static_cast<float>(options_.lr);
  stream_.each({StateStream::in_out(state(kModel).shard(plan_, unit)),
                StateStream::in_out(state(kMomentum).shard(plan_, unit)), StateStream::in_out(movement),
                StateStream::out(weights_.master(unit))},
               [&](std::span<const Tensor> x, std::int64_t) {
                 const auto &model = x[0], &m = x[1], &d = x[2], &weights = x[3];
                 backend_.scale(m, m, momentum);
                 backend_.add(m, d);
                 if (options_.nesterov) {
                   backend_.scale(weights, m, momentum);
                   backend_.add(d, weights);
                 } else {
                   backend_.convert(d, m);
                 }
                 backend_.scale(d, d, -rate);
                 backend_.add(model, d);
                 backend_.convert(weights, model);
               });
}

}  // namespace shoal
