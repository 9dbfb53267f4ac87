#include "parallel/gossip/outer_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "parallel/gossip/rounds.h"

namespace shoal {
namespace {

constexpr std::size_t kModel = 0, kMomentum = 1, kUnsent = 2;  // in kOuterStates

// Words of a packed block; 0: numbers are not packed.
std::int64_t words_of(const OuterSent& sent) {
  if (sent.kind == OuterSent::Kind::int4) return kInt4Words;
  if (sent.kind != OuterSent::Kind::largest) return 0;
  return std::max<std::int64_t>(1, std::llround(sent.share * static_cast<double>(kSparseBlock)));
}

// Packed blocks of a unit that are sent to and received from a group.
struct Rows {
  std::int64_t sent = 0, received = 0;
  Rows operator+(const Rows& other) const { return {sent + other.sent, received + other.received}; }
};
Rows rows_of(const OuterSent& sent, std::int64_t blocks, int members) {
  if (sent.kind != OuterSent::Kind::int4) return {blocks, members * blocks};
  const std::int64_t whole = (blocks + members - 1) / members * members;  // an equal part for each member
  return {whole, whole};
}
// At least those of any group of so many workers.
Rows most_rows_of(const OuterSent& sent, std::int64_t blocks, int workers) {
  if (sent.kind != OuterSent::Kind::int4) return rows_of(sent, blocks, workers);
  return {blocks + workers - 1, blocks + workers - 1};
}

}  // namespace

OuterBuffers OuterBuffers::take(Arena& resting, Arena& exchange, const ShardPlan& plan,
                                const OuterOptions& options, int workers) {
  OuterBuffers b;
  for (std::size_t i = 0; i < outer_states(options); ++i) b.state.emplace_back(resting, plan);
  std::int64_t largest = 0;
  Rows most;
  for (int f = 0; f < options.fragments(); ++f) {
    std::int64_t size = 0;
    Rows rows;
    plan.for_units([&](int u) {
      if (!options.has(f, u)) return;
      size += plan.shard_size(u);
      rows = rows + most_rows_of(options.sent, plan.shard_size(u) / kSparseBlock, workers);
    });
    largest = std::max(largest, size);
    most = {std::max(most.sent, rows.sent), std::max(most.received, rows.received)};
  }
  if (options.overlap > 0) b.movement = exchange.take(DType::f32, {largest});
  if (options.sent.kind == OuterSent::Kind::bfloat16) b.sent = exchange.take(DType::bf16, {largest});
  if (const std::int64_t words = words_of(options.sent); words > 0) {
    b.sent = exchange.take(DType::i32, {most.sent, words});
    if (workers > 1) b.received = exchange.take(DType::i32, {most.received, words});
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
  const bool together = topology->is_complete();
  of_all_ = together && options.fragments() == 1 && options.overlap == 0;
  sends_models_ = !together && options.sent.kind == OuterSent::Kind::all;
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
  if (options_.exchange_after(update - options_.sums_after())) pass_sums_on();
  if (options_.overlap == 0) go_on(reducer, update);
}

void OuterOptimizer::send(GradientReducer& reducer, std::int64_t update) {
  const auto exchange = options_.exchange_after(update);
  if (!exchange) return;
  weights_.settle();
  group_ = nullptr;
  if (!rounds_.empty())
    group_ = rounds_[static_cast<std::size_t>(exchange->round % std::ssize(rounds_))].get();
  if (group_ && group_->size() == 1) group_ = nullptr;
  const std::int64_t words = words_of(options_.sent);
  std::int64_t first = 0;
  Rows row;
  plan_.for_units([&](int u) {
    if (!options_.has(exchange->fragment, u)) return;
    const std::int64_t size = plan_.shard_size(u);
    Sent unit{.unit = u, .movement = reducer.reduced(u)};
    if (options_.overlap > 0) unit.movement = part_of(buffers_.movement, first, size);
    stream_.scale(unit.movement, weights_.master(u), -1);
    if (!sends_models_) stream_.add(unit.movement, state(kModel).shard(plan_, u));
    if (options_.sent.kind == OuterSent::Kind::bfloat16) unit.sent = part_of(buffers_.sent, first, size);
    if (words > 0) {
      const Rows rows = rows_of(options_.sent, size / kSparseBlock, members());
      unit.sent = buffers_.sent.row_range(row.sent, rows.sent);
      if (group_) unit.received = buffers_.received.row_range(row.received, rows.received);
      row = row + rows;
    }
    if (unit.sent) pack(unit);
    if (group_) {
      unit.purpose = fmt::format("step {}, movement of {}", update, plan_.unit(u).name);
      group_->set_purpose(unit.purpose);
      unit.exchange =
          !unit.received ? group_->all_reduce(unit.sent ? unit.sent : stream_.settled(unit.movement))
          : options_.sent.kind == OuterSent::Kind::int4 ? group_->all_to_all(unit.received, unit.sent)
                                                        : group_->all_gather(unit.received, unit.sent);
    }
    under_way_.push_back(std::move(unit));
    first += size;
  });
}

// Each member adds up its part of what all have sent. The movement's memory has no other use until its end.
void OuterOptimizer::pass_sums_on() {
  if (options_.sent.kind != OuterSent::Kind::int4 || !group_) return;
  for (auto& unit : under_way_) {
    if (std::exchange(unit.summed, true)) continue;
    unit.exchange.wait();
    const std::int64_t rows = unit.sent.rows() / members();
    const Tensor sum = part_of(unit.movement, 0, rows * kSparseBlock), mine = unit.sent.row_range(0, rows);
    stream_.each(
        {StateStream::out(sum)},
        [&](auto x, std::int64_t first) {
          backend_.zero(x[0]);
          const std::int64_t row = first / kSparseBlock, here = x[0].count() / kSparseBlock;
          for (int member = 0; member < members(); ++member)
            backend_.add_int4(x[0], unit.received.row_range(member * rows + row, here));
          backend_.take_int4(mine.row_range(row, here), x[0]);
        },
        kSparseBlock);
    group_->set_purpose(unit.purpose);
    unit.exchange = group_->all_gather(unit.received, mine);
  }
}

void OuterOptimizer::arrive(GradientReducer& reducer) {
  pass_sums_on();
  for (auto& unit : under_way_) unit.exchange.wait();
  for (const auto& unit : under_way_) {
    if (unit.sent) unpack(unit);
    if (group_) stream_.scale(unit.movement, unit.movement, 1.0f / static_cast<float>(members()));
    if (sends_models_) stream_.add(unit.movement, state(kModel).shard(plan_, unit.unit));
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
  stream_.each(
      {StateStream::in_out(rest)},
      [&](auto x, std::int64_t first) {
        const Tensor packed = unit.sent.row_range(first / kSparseBlock, x[0].count() / kSparseBlock);
        options_.sent.kind == OuterSent::Kind::int4 ? backend_.take_int4(packed, x[0])
                                                    : backend_.take_largest(packed, x[0]);
      },
      kSparseBlock);
  const std::int64_t blocks = rest.count() / kSparseBlock;
  if (blocks < unit.sent.rows()) backend_.zero(unit.sent.row_range(blocks, unit.sent.rows() - blocks));
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
        const std::int64_t row = first / kSparseBlock, here = x[0].count() / kSparseBlock;
        if (options_.sent.kind == OuterSent::Kind::int4)
          return backend_.add_int4(x[0], all.row_range(row, here));
        for (int member = 0; member < members(); ++member)
          backend_.add_taken(x[0], all.row_range(member * unit.sent.rows() + row, here), 1);
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
