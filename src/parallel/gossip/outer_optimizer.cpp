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

// The part of a member of the group, for so many elements: i32 [blocks, count of a block].
Tensor by_block(const Tensor& taken, int member, std::int64_t elements, std::int64_t count) {
  const std::int64_t blocks = elements / kSparseBlock;
  return part_of(taken, member * blocks * count, blocks * count).reshaped({blocks, count});
}

}  // namespace

OuterBuffers OuterBuffers::take(Arena& resting, Arena& exchange, const ShardPlan& plan,
                                const OuterOptions& options, int workers) {
  OuterBuffers b;
  for (std::size_t i = 0; i < outer_states(options); ++i) b.state.emplace_back(resting, plan);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(options.fragments()));
  for (int f = 0; f < options.fragments(); ++f) {
    plan.for_units(
        [&](int u) { sizes[static_cast<std::size_t>(f)] += options.has(f, u) ? plan.shard_size(u) : 0; });
  }
  const std::int64_t largest = std::ranges::max(sizes);
  if (options.overlap > 0) b.movement = exchange.take(DType::f32, {largest});
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
  of_all_ = options.fragments() == 1 && options.overlap == 0 &&
            std::ranges::all_of(topology->rounds, [](const auto& round) { return round.size() == 1; });
}

void OuterOptimizer::begin() {
  for (auto& unit : under_way_) unit.exchange.wait();
  under_way_.clear();
  for (const auto& state : buffers_.state) stream_.zero(state.all());
  plan_.for_units([&](int u) { stream_.convert(state(kModel).shard(plan_, u), weights_.master(u)); });
  equal_ = true;
}

void OuterOptimizer::step(GradientReducer& reducer, std::int64_t step) {
  const std::int64_t update = step + 1;
  equal_ = rounds_.empty();
  if (options_.overlap > 0) go_on(reducer, update - options_.overlap);
  send(reducer, update);
  if (options_.overlap == 0) go_on(reducer, update);
}

void OuterOptimizer::send(GradientReducer& reducer, std::int64_t update) {
  const auto exchange = options_.exchange_after(update);
  if (!exchange) return;
  weights_.settle();
  Communicator* group = nullptr;
  if (!rounds_.empty())
    group = rounds_[static_cast<std::size_t>(exchange->round % std::ssize(rounds_))].get();
  members_ = group ? group->size() : 1;
  const std::int64_t count = sparse_count(options_.sent);
  std::int64_t first = 0;
  plan_.for_units([&](int u) {
    if (!options_.has(exchange->fragment, u)) return;
    const std::int64_t size = plan_.shard_size(u), blocks = size / kSparseBlock;
    Sent unit{.unit = u, .movement = reducer.reduced(u), .sent = {}, .received = {}, .exchange = {}};
    if (options_.overlap > 0) unit.movement = part_of(buffers_.movement, first, size);
    stream_.scale(unit.movement, weights_.master(u), -1);
    stream_.add(unit.movement, state(kModel).shard(plan_, u));
    if (options_.sent.kind == OuterSent::Kind::bfloat16) unit.sent = part_of(buffers_.sent, first, size);
    if (options_.sent.kind == OuterSent::Kind::largest) {
      const std::int64_t at = first / kSparseBlock * count;
      unit.sent = part_of(buffers_.sent, at, blocks * count);
      if (members_ > 1) unit.received = part_of(buffers_.received, members_ * at, members_ * blocks * count);
    }
    if (unit.sent) pack(unit);
    if (members_ > 1) {
      group->set_purpose(fmt::format("step {}, movement of {}", update, plan_.unit(u).name));
      unit.exchange = unit.received
                          ? group->all_gather(unit.received, unit.sent)
                          : group->all_reduce(unit.sent ? unit.sent : stream_.settled(unit.movement));
    }
    under_way_.push_back(std::move(unit));
    first += size;
  });
}

void OuterOptimizer::arrive(GradientReducer& reducer) {
  for (auto& unit : under_way_) unit.exchange.wait();
  for (const auto& unit : under_way_) {
    if (unit.sent) unpack(unit);
    if (members_ > 1) stream_.scale(unit.movement, unit.movement, 1.0f / static_cast<float>(members_));
    // With overlap gradients are not in use, else weights are not.
    move(unit.unit, unit.movement,
         options_.overlap > 0 ? reducer.reduced(unit.unit) : weights_.master(unit.unit));
  }
  under_way_.clear();
}

// Workers go on from the model that the exchange after `update` has moved.
void OuterOptimizer::go_on(GradientReducer& reducer, std::int64_t update) {
  const auto exchange = options_.exchange_after(update);
  if (!exchange) return;
  arrive(reducer);
  weights_.settle();
  const auto own = static_cast<float>(options_.own_share);
  plan_.for_units([&](int u) {
    if (!options_.has(exchange->fragment, u)) return;
    stream_.each({StateStream::in(state(kModel).shard(plan_, u)), StateStream::in_out(weights_.master(u))},
                 [&](std::span<const Tensor> x, std::int64_t) {
                   if (options_.overlap == 0) return backend_.convert(x[1], x[0]);
                   backend_.scale_and_add(x[1], own, x[0], 1 - own);
                 });
    weights_.changed(u, false);
  });
  equal_ = of_all_;
}

// Packs the sum of the movement and what was not sent before; what stays is the new rest.
void OuterOptimizer::pack(const Sent& unit) {
  const Tensor rest = state(kUnsent).shard(plan_, unit.unit);
  stream_.add(rest, unit.movement);
  if (options_.sent.kind == OuterSent::Kind::bfloat16) {
    stream_.convert(unit.sent, rest);
    stream_.convert(unit.movement, unit.sent);
    stream_.each({StateStream::in_out(rest), StateStream::in_out(unit.movement)}, [&](auto x, std::int64_t) {
      backend_.scale(x[1], x[1], -1);
      backend_.add(x[0], x[1]);
    });
    return;
  }
  const Tensor taken = by_block(unit.sent, 0, rest.count(), sparse_count(options_.sent));
  stream_.each(
      {StateStream::in_out(rest)},
      [&](auto x, std::int64_t first) {
        const std::int64_t here = x[0].count() / kSparseBlock;
        backend_.take_largest(taken.row_range(first / kSparseBlock, here), x[0]);
      },
      kSparseBlock);
}

// The movement becomes the sum of what the members have sent.
void OuterOptimizer::unpack(const Sent& unit) {
  const Tensor& movement = unit.movement;
  if (options_.sent.kind == OuterSent::Kind::bfloat16) return stream_.convert(movement, unit.sent);
  const Tensor& all = unit.received ? unit.received : unit.sent;
  stream_.zero(movement);
  stream_.each(
      {StateStream::in_out(movement)},
      [&](auto x, std::int64_t first) {
        const std::int64_t here = x[0].count() / kSparseBlock;
        for (int member = 0; member < members_; ++member) {
          const Tensor taken = by_block(all, member, movement.count(), sparse_count(options_.sent));
          backend_.add_taken(x[0], taken.row_range(first / kSparseBlock, here), 1);
        }
      },
      kSparseBlock);
}

// PyTorch's SGD: m = momentum m + d; the model moves against m, or with Nesterov's against d + momentum m.
void OuterOptimizer::move(int unit, const Tensor& movement, const Tensor& scratch) {
  const auto momentum = static_cast<float>(options_.momentum), rate = static_cast<float>(options_.lr);
  stream_.each({StateStream::in_out(state(kModel).shard(plan_, unit)),
                StateStream::in_out(state(kMomentum).shard(plan_, unit)), StateStream::in_out(movement),
                StateStream::out(scratch)},
               [&](std::span<const Tensor> x, std::int64_t) {
                 const auto &model = x[0], &m = x[1], &d = x[2], &ahead = x[3];
                 backend_.scale(m, m, momentum);
                 backend_.add(m, d);
                 if (options_.nesterov) {
                   backend_.scale(ahead, m, momentum);
                   backend_.add(d, ahead);
                 } else {
                   backend_.convert(d, m);
                 }
                 backend_.scale(d, d, -rate);
                 backend_.add(model, d);
               });
}

}  // namespace shoal
