#include "parallel/data/engine_buffers.h"

#include <algorithm>

#include "parallel/data/gradient_tree.h"

namespace shoal {

UnitBuffers UnitBuffers::all(Arena& arena, const ShardPlan& plan, DType dtype) {
  UnitBuffers result;
  const Tensor flat = arena.take(dtype, {plan.total()});
  for (int u = 0; u < plan.unit_count(); ++u) {
    result.buffers_.push_back(part_of(flat, plan.first(u), plan.padded(u)));
    result.slots_.push_back(u);
    result.sizes_.push_back(plan.padded(u));
  }
  return result;
}

UnitBuffers UnitBuffers::in_turns(Arena& arena, const ShardPlan& plan, DType dtype) {
  UnitBuffers result;
  const int blocks = plan.blocks(), turns = std::min(blocks, 2);
  std::vector<std::int64_t> largest(static_cast<std::size_t>(plan.unit_count() - blocks + turns));
  for (int u = 0; u < plan.unit_count(); ++u) {
    const bool block = u > 0 && u <= blocks;
    const int slot = block ? 1 + (u - 1) % turns : u == 0 ? 0 : u - blocks + turns;
    result.slots_.push_back(slot);
    result.sizes_.push_back(plan.padded(u));
    auto& size = largest[static_cast<std::size_t>(slot)];
    size = std::max(size, plan.padded(u));
  }
  for (const auto size : largest) result.buffers_.push_back(arena.take(dtype, {size}));
  return result;
}

Tensor UnitBuffers::operator[](int unit) const {
  return part_of(buffers_[static_cast<std::size_t>(slot(unit))], 0, sizes_[static_cast<std::size_t>(unit)]);
}

EngineMode::EngineMode(const EngineOptions& options, const ShardPlan& plan)
    : gathers_weights(options.zero == 3),
      separate_compute(options.compute != DType::f32 || options.zero == 3 || !options.offload.empty() ||
                       options.on_host),
      shards_gradients(options.zero >= 2 || options.layout_exact),
      ordered(options.layout_exact || (options.reduced != DType::f32 && plan.ranks() > 1)),
      leaves(shards_gradients ? options.micro_batches : plan.ranks()),
      on_disk(!options.offload.empty()),
      on_host(options.on_host) {}

PinnedMemory::PinnedMemory(Backend& backend, std::size_t bytes) : backend_(&backend) {
  if (bytes > 0) bytes_ = {static_cast<std::byte*>(backend.allocate_host(bytes)), bytes};
}

PinnedMemory::~PinnedMemory() {
  if (!bytes_.empty()) backend_->release_host(bytes_.data(), bytes_.size());
}

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

namespace {

// An update is what streams most tensors: master weights and the parameters made of them where those rest
// too; in training the moments, the window's mean and the gradient.
StreamBuffers take_stream(EngineArenas& arenas, const ShardPlan& plan, const EngineOptions& options) {
  int tensors = options.zero == 3 && options.compute != DType::f32 ? 2 : 1;
  if (options.training) tensors += (options.adamw.accum_steps > 1 ? 3 : 2) + (options.zero >= 2 ? 1 : 0);
  std::int64_t largest = 0;
  plan.for_units([&](int u) { largest = std::max(largest, plan.shard_size(u)); });
  return StreamBuffers::take(arenas.streaming, options.offload.empty() ? nullptr : &arenas.host, tensors,
                             std::min(largest, options.streamed));
}

}  // namespace

EngineBuffers EngineBuffers::take(EngineArenas& arenas, const ShardPlan& plan, const ShardPlan& summed,
                                  const EngineOptions& options) {
  const EngineMode mode(options, plan);
  const std::int64_t shards = plan.total() / plan.shards(), pieces = plan.total() / plan.ranks();
  const auto resting = [&](Arena& memory) -> Arena& {
    return mode.on_disk ? arenas.disk : mode.on_host ? arenas.host : memory;
  };

  EngineBuffers b;
  if (mode.separate_compute) b.master = resting(arenas.weights).take(DType::f32, {shards});
  if (mode.gathers_weights) {
    b.compute = UnitBuffers::in_turns(arenas.compute, plan, options.compute);
    if (options.compute != DType::f32) {
      b.compute_shards =
          (mode.on_host ? resting(arenas.compute) : arenas.compute).take(options.compute, {shards});
    }
  } else {
    auto& arena = mode.separate_compute ? arenas.compute : arenas.weights;
    b.compute = UnitBuffers::all(arena, plan, options.compute);
  }
  if (mode.on_host) b.stream = take_stream(arenas, plan, options);
  if (!options.training) return b;

  auto& moments = resting(arenas.optimizer);
  b.m = moments.take(DType::f32, {shards});
  b.v = moments.take(DType::f32, {shards});
  if (options.adamw.accum_steps > 1) b.mean = moments.take(DType::f32, {shards});

  auto& gradients = options.zero >= 2 ? resting(arenas.gradients) : arenas.gradients;
  b.gradients = mode.shards_gradients ? UnitBuffers::in_turns(arenas.gradients, summed, DType::f32)
                                      : UnitBuffers::all(arenas.gradients, summed, DType::f32);
  if (mode.ordered) {
    if (options.reduced != DType::f32)
      b.sent = UnitBuffers::in_turns(arenas.exchange, summed, options.reduced);
    if (plan.ranks() > 1) b.received = UnitBuffers::in_turns(arenas.exchange, summed, options.reduced);
    b.tree = gradients.take(DType::f32, {GradientTree::buffers(mode.leaves) * summed.total() / plan.ranks()});
  }
  if (mode.ordered ? plan.replicas() > 1 : mode.shards_gradients) {
    b.gradient_shards = gradients.take(DType::f32, {summed.total() / plan.shards()});
  }
  if (options.gossip && options.gossip->topology.workers > 1) {
    b.copy = arenas.exchange.take(DType::f32, {shards});
    b.chunk = arenas.exchange.take(DType::f32, {kChunk});
  }
  b.clip = arenas.exchange.take(DType::f32, {1});
  b.squares = arenas.exchange.take(DType::f64, {1});
  b.some_squares = arenas.exchange.take(DType::f64, {1});
  b.block_squares = arenas.exchange.take(DType::f64, {pieces / ShardPlan::kBlock});
  b.all_block_squares = arenas.exchange.take(DType::f64, {plan.total() / ShardPlan::kBlock});
  b.unit_squares = arenas.exchange.take(DType::f64, {plan.unit_count(), options.part.tensor.size});
  b.numbers = arenas.exchange.take(DType::f32, {sizeof(AdamWNumbers) / sizeof(float)});
  return b;
}

}  // namespace shoal
