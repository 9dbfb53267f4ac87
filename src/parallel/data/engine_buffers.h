// The memory of a synchronous engine. What is taken, and what `shoal size` says would be taken, is computed
// by the same code.
#pragma once

#include <vector>

#include "core/mapped_memory.h"
#include "model/arena.h"
#include "parallel/data/engine_options.h"
#include "parallel/data/shard_plan.h"
#include "parallel/data/state_stream.h"

namespace shoal {

// One buffer per unit where all are needed at a time; where units come and go, two that the blocks use in
// turns, and one for every other unit.
class UnitBuffers {
 public:
  UnitBuffers() = default;
  static UnitBuffers all(Arena& arena, const ShardPlan& plan, DType dtype);
  static UnitBuffers in_turns(Arena& arena, const ShardPlan& plan, DType dtype);

  explicit operator bool() const { return !buffers_.empty(); }
  int count() const { return static_cast<int>(buffers_.size()); }
  // Which of the buffers a unit uses.
  int slot(int unit) const { return slots_[static_cast<std::size_t>(unit)]; }
  // Its buffer, [padded size of the unit].
  Tensor operator[](int unit) const;

 private:
  std::vector<Tensor> buffers_;
  std::vector<int> slots_;
  std::vector<std::int64_t> sizes_;
};

// How an engine of these options goes about it.
struct EngineMode {
  bool gathers_weights;   // parameters are sharded, and whole only while a unit is used
  bool separate_compute;  // products use another copy than the master weights
  bool shards_gradients;  // a unit's gradient is reduced after every pass
  bool ordered;           // leaves are sent to the rank that owns the piece and added there, in their order
  int leaves;             // of an ordered sum
  bool on_disk;
  bool on_host;  // what rests is not in the backend's memory

  EngineMode(const EngineOptions& options, const ShardPlan& plan);
};

// Of the host, for copies beside the backend's kernels.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(Backend& backend, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  std::span<std::byte> bytes_;
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

  // A hint for what may rest on disk; nothing happens where it does not.
  void done_with(const Tensor& x) const;

  // The host's memory where state rests that is not in the backend's.
  std::span<const std::byte> resting(const EngineMode& mode) const {
    if (!mode.on_host) return {};
    return mode.on_disk ? file.bytes() : pinned.bytes();
  }

  MappedMemory file;
  PinnedMemory pinned;
  Arena disk, host, weights, compute, gradients, optimizer, exchange, streaming;
};

struct EngineBuffers {
  static constexpr std::int64_t kChunk = 1 << 16;

  // This rank's shards of the master weights, of the moments, of the mean gradient of a window of steps, and
  // of the gradient where that is sharded; f32 [total / shards]. `master` is empty where the whole float32
  // parameters in `compute` are the master weights, `mean` where the moments change at every step.
  Tensor master, m, v, mean, gradient_shards;
  UnitBuffers compute;    // whole units for the products, in their type
  Tensor compute_shards;  // this rank's part of them where they are gathered and of another type than master
  UnitBuffers gradients;  // whole units, f32
  UnitBuffers sent, received;               // of an ordered reduction: leaves in the type they travel in
  Tensor tree;                              // f32 [buffers * total / ranks]
  Tensor copy;                              // of gossip: f32 [total / shards], what is under way
  Tensor chunk;                             // f32 [kChunk], with which the workers' mean is looked at
  Tensor clip, squares, some_squares;       // f32 [1]; f64 [1], of the whole model and of less
  Tensor block_squares, all_block_squares;  // f64 [blocks of this rank's pieces], [of all pieces]
  Tensor unit_squares;                      // f64 [units, tensor ranks]
  Tensor numbers;                           // an AdamWNumbers, of this step
  StreamBuffers stream;                     // where state rests on the host

  // `summed` is the plan of the gradients, which may have more units.
  static EngineBuffers take(EngineArenas& arenas, const ShardPlan& plan, const ShardPlan& summed,
                            const EngineOptions& options);
};

}  // namespace shoal
