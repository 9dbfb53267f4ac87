// The parameters on one rank: its shards of the master weights, and whole units for the products, which are
// gathered once per step or, where they are sharded too (ZeRO 3), whenever a unit is used, one unit ahead.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/data/engine_arenas.h"
#include "parallel/data/state_stream.h"
#include "parallel/data/unit_buffers.h"

namespace shoal {

struct WeightBuffers {
  Tensor master;      // f32 [total / shards]; empty where the whole float32 parameters are the master weights
  UnitBuffers whole;  // units for the products, in their type
  Tensor shards;      // this rank's part of them where they are gathered and of another type than `master`

  static WeightBuffers take(EngineArenas& arenas, const ShardPlan& plan, const EngineMode& mode,
                            DType compute);
};

class WeightStore {
 public:
  // `shards` is the group of the ranks that hold the other shards; all must outlive the store.
  WeightStore(Backend& backend, Communicator& shards, const ShardPlan& plan, const WeightBuffers& buffers,
              const EngineMode& mode, StateStream& stream);

  void begin_step(std::int64_t step) {
    step_ = step;
    last_ = 0;  // a forward pass comes
  }

  // A unit's parameters for the products, whole, until release.
  UnitView use(int unit);
  void release(int unit);

  // This rank's shard of the master weights, f32 [shard_size]. It may rest on the host.
  Tensor master(int unit) const;
  // The copy of this shard for the products, which an update writes beside the master weights; empty where
  // they are the same memory. It may rest, too.
  Tensor copy(int unit) const;

  // Puts the weights of products in 8 bits, in their memory: for use without updates. Not where weights are
  // gathered.
  void to_int8();

  // Waits until nobody reads the shards: before they are changed.
  void settle();
  // The master weights of a unit have changed, and with `converted` its copy() as well: the whole unit is
  // made of them again.
  void changed(int unit, bool converted);

 private:
  void gather(int unit);
  int after(int unit) const;
  void gather_ahead();
  Tensor shard_for_products(int unit) const;

  struct Slot {
    int unit = -1;  // the unit whose parameters are there or on their way
    bool used = false;
    Request coming;
    std::unique_ptr<Backend::Event> brought;  // the copy of this rank's shard from the host is complete
  };
  Slot& slot(int unit) { return slots_[static_cast<std::size_t>(buffers_.whole.slot(unit))]; }

  Backend& backend_;
  Communicator& shards_;
  const ShardPlan& plan_;
  WeightBuffers buffers_;
  EngineMode mode_;
  StateStream& stream_;
  std::vector<Slot> slots_;
  std::int64_t step_ = 0;
  bool int8_ = false;
  int last_ = 0;    // the unit but the embedding that was used last: tells forward from backward
  int ahead_ = -1;  // the unit that will be used next, -1 where none is to be gathered before
};

}  // namespace shoal
