#include "parallel/gossip/mixer.h"

#include <fmt/format.h>

#include <utility>

#include "parallel/gossip/rounds.h"

namespace shoal {

std::vector<Bucket> make_buckets(const ShardPlan& plan, double bytes) {
  std::vector<Bucket> buckets;
  double filled = 0;
  for (int unit = plan.unit_count(); unit-- > 0;) {
    const double size = 4.0 * static_cast<double>(plan.shard_size(unit));
    if (size == 0) continue;
    // The backward pass ends with the first of a bucket: with the first block's adapter long after the head.
    const bool next_to_last = !buckets.empty() && buckets.back().first == unit + 1 && unit != plan.head();
    // The last stage may hold the embedding's matrix too, and has no unit next to it. Both need the same
    // bits, but NCCL's order of additions depends on an element's place in the bucket.
    const bool apart = unit == 0 && plan.padded(plan.head()) == 0;
    if (next_to_last && !apart && filled + size <= bytes) {
      buckets.back().first = unit;
      filled += size;
    } else {
      buckets.push_back({unit, unit});
      filled = size;
    }
  }
  return buckets;
}

Mixer::Mixer(StateStream& stream, Communicator& peers, const Topology& topology, const ShardPlan& plan,
             std::vector<Bucket> buckets, WeightStore& weights, const Tensor& copy)
    : stream_(stream),
      plan_(plan),
      weights_(weights),
      copy_(copy),
      buckets_(std::move(buckets)),
      rounds_(split_rounds(peers, topology)),
      exchanges_(plan.units().size()) {}

void Mixer::reset(bool equal) {
  for (auto& exchange : exchanges_) {
    exchange.request.wait();
    exchange.members = 1;
  }
  equal_ = started_ = equal;
}

void Mixer::begin_step(std::int64_t step) {
  step_ = step;
  equal_ = false;  // here, not where a bucket starts, since a stage that trains nothing has none
  if (std::exchange(started_, true)) return;
  for (const auto& bucket : buckets_) start(bucket, step);
}

void Mixer::mix(const Bucket& bucket) {
  auto& [request, members] = exchange(bucket);
  request.wait();
  if (members == 1) return;
  for (int unit = bucket.first; unit <= bucket.last; ++unit) {
    stream_.scale(weights_.master(unit), copy_of({unit, unit}), 1.0f / static_cast<float>(members));
  }
}

void Mixer::start(const Bucket& bucket, std::int64_t step) {
  auto& group = *rounds_[static_cast<std::size_t>(step % std::ssize(rounds_))];
  auto& [request, members] = exchange(bucket);
  members = group.size();
  if (members == 1) return;
  for (int unit = bucket.first; unit <= bucket.last; ++unit) {
    stream_.convert(copy_of({unit, unit}), weights_.master(unit));
  }
  group.set_purpose(fmt::format("step {}, averaging of {}", step + 1, plan_.unit(bucket.first).name));
  request = group.all_reduce(copy_of(bucket));
}

Tensor Mixer::copy_of(const Bucket& units) const {
  const std::int64_t first = plan_.first(units.first),
                     end = plan_.first(units.last) + plan_.padded(units.last);
  return part_of(copy_, first / plan_.shards(), (end - first) / plan_.shards());
}

}  // namespace shoal
