// The memory of an engine, by where it lies. An engine takes it, and engine_memory() measures it, by the same
// code.
#pragma once

#include "core/mapped_memory.h"
#include "model/arena.h"
#include "ops/pinned_memory.h"
#include "parallel/data/engine_options.h"
#include "parallel/data/shard_plan.h"

namespace shoal {

// The choices that follow from an engine's options.
struct EngineMode {
  bool gathers_weights;   // parameters are sharded, and whole only while a unit is used
  bool separate_compute;  // products use another copy than the master weights
  bool shards_gradients;  // a unit's gradient is reduced after every pass
  bool ordered;  // per-micro-batch gradients go to the rank that owns the piece, which adds them in order
  int leaves;    // terms of an ordered sum
  bool on_disk;  // state rests in a mapped file
  bool on_host;  // state rests in the host's memory, and the backend has memory of its own
  bool updates_later;     // an update may end in the next step: its forward passes, and state(), are all that
                          // needs it
  bool norm_in_backward;  // a unit's squares are summed when its gradient is complete, not behind all passes

  EngineMode(const EngineOptions& options, const ShardPlan& plan);
};

struct EngineArenas {
  EngineArenas() = default;  // measures
  EngineArenas(Backend& backend, const EngineMemory& sizes, const std::filesystem::path& offload)
      : file(offload.empty() ? MappedMemory() : MappedMemory(offload, sizes.on_disk)),
        pinned(backend, sizes.on_host),
        disk(file.bytes()),
        host(pinned.bytes()),
        weights(backend, sizes.weights),
        compute(backend, sizes.compute_copy),
        gradients(backend, sizes.gradients),
        optimizer(backend, sizes.optimizer),
        exchange(backend, sizes.exchange),
        streaming(backend, sizes.streaming) {}
  EngineMemory used() const;

  // Hints that a tensor is not needed for a while; has an effect for tensors on disk.
  void done_with(const Tensor& x) const;

  // The host's memory where state rests; empty where state is in the backend's.
  std::span<const std::byte> resting(const EngineMode& mode) const {
    if (!mode.on_host) return {};
    return mode.on_disk ? file.bytes() : pinned.bytes();
  }
  // The arena for state that may rest: `memory` where it does not.
  Arena& for_state(Arena& memory, const EngineMode& mode) {
    return mode.on_disk ? disk : mode.on_host ? host : memory;
  }

  MappedMemory file;
  PinnedMemory pinned;
  Arena disk, host, weights, compute, gradients, optimizer, exchange, streaming;
};

}  // namespace shoal
