#include "parallel/data/engine_arenas.h"

namespace shoal {

EngineMode::EngineMode(const EngineOptions& options, const ShardPlan& plan)
    : gathers_weights(options.zero == 3),
      separate_compute(options.compute != DType::f32 || options.zero == 3 || !options.offload.empty() ||
                       options.on_host),
      shards_gradients(options.zero >= 2 || options.layout_exact),
      ordered(options.layout_exact || (options.travel() != DType::f32 && plan.ranks() > 1)),
      leaves(shards_gradients ? options.micro_batches : plan.ranks()),
      on_disk(!options.offload.empty()),
      on_host(options.on_host),
      updates_later(plan.shards() == 1 && !gathers_weights && !on_disk && !on_host && !options.gossip &&
                    !options.outer && options.ema == 0),
      norm_in_backward(plan.ranks() == 1 && options.part.tensor.size == 1 && !ordered && !on_host &&
                       !options.by_bucket()) {}

EngineMemory EngineArenas::used() const {
  return {.weights = weights.used(),
          .compute_copy = compute.used(),
          .gradients = gradients.used(),
          .optimizer = optimizer.used(),
          .exchange = exchange.used(),
          .streaming = streaming.used(),
          .on_host = host.used(),
          .on_disk = disk.used()};
}

void EngineArenas::done_with(const Tensor& x) const {
  const auto all = file.bytes();
  const auto* data = x.as<const std::byte>();
  if (data >= all.data() && data < all.data() + all.size()) file.done_with({data, x.bytes()});
}

}  // namespace shoal
