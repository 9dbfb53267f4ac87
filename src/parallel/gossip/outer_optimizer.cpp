#include "parallel/gossip/outer_optimizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/gossip/rounds.h"

namespace shoal {

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
  stream_.zero(buffers_.momentum.all());
  plan_.for_units([&](int u) { stream_.convert(buffers_.model.shard(plan_, u), weights_.master(u)); });
  equal_ = true;
}

void OuterOptimizer::step(GradientReducer& reducer, std::int64_t step) {
  equal_ = rounds_.empty();
  if ((step + 1) % options_.interval != 0) return;
  weights_.settle();
  plan_.for_units([&](int u) {
    const Tensor movement = reducer.reduced(u);
    stream_.scale(movement, weights_.master(u), -1);
    stream_.add(movement, buffers_.model.shard(plan_, u));
  });
  average(reducer, step, (step + 1) / options_.interval - 1);
  plan_.for_units([&](int u) {
    move(u, reducer.reduced(u));
    weights_.changed(u, false);
  });
  equal_ = of_all_;
}

void OuterOptimizer::average(GradientReducer& reducer, std::int64_t step, std::int64_t round) {
  if (rounds_.empty()) return;
  auto& group = *rounds_[static_cast<std::size_t>(round % std::ssize(rounds_))];
  if (group.size() == 1) return;
  std::vector<Request> sums;
  plan_.for_units([&](int u) {
    group.set_purpose(fmt::format("step {}, movement of {}", step + 1, plan_.unit(u).name));
    sums.push_back(group.all_reduce(stream_.settled(reducer.reduced(u))));
  });
  for (auto& sum : sums) sum.wait();
  plan_.for_units([&](int u) {
    stream_.scale(reducer.reduced(u), reducer.reduced(u), 1.0f / static_cast<float>(group.size()));
  });
}

// PyTorch's SGD: m = momentum m + d; the model moves against m, or with Nesterov's against d + momentum m.
void OuterOptimizer::move(int unit, const Tensor& movement) {
  const auto momentum = static_cast<float>(options_.momentum), rate = static_cast<float>(options_.lr);
  stream_.each({StateStream::in_out(buffers_.model.shard(plan_, unit)),
                StateStream::in_out(buffers_.momentum.shard(plan_, unit)), StateStream::in_out(movement),
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
