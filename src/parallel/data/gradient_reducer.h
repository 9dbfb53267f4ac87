// Gradients of whole units while the model adds to them, and their reduction over the data ranks while the
// backward pass goes on.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "parallel/data/engine_arenas.h"
#include "parallel/data/state_stream.h"
#include "parallel/data/unit_buffers.h"

namespace shoal {

struct DataGroups {
  std::unique_ptr<Communicator> pieces, shards, replicas;  // ShardPlan::in_pieces, ...
};

struct GradientBuffers {
  UnitBuffers whole;           // units of EngineOptions::gradients' type, which the model adds to
  UnitBuffers sent, received;  // an ordered reduction's per-micro-batch gradients, in the type they travel in
  Tensor tree;                 // partial sums of an ordered reduction, f32 [buffers * total / ranks]
  Tensor shards;               // f32 [total / shards], where they are not part of one of the others

  // `plan` is that of the gradients, which may have a unit more than that of the parameters.
  static GradientBuffers take(EngineArenas& arenas, const ShardPlan& plan, const EngineMode& mode,
                              const EngineOptions& options);
};

// The parts that a reducer works with; all must outlive it.
struct ReducerContext {
  Backend& backend;
  StateStream& stream;
  DataGroups& groups;
  const ShardPlan& plan;
  GradientBuffers buffers;
  EngineMode mode;
  int passes = 1;         // of a step on this rank
  int micro_batches = 1;  // of a step on all ranks
};

class GradientReducer {
 public:
  explicit GradientReducer(const ReducerContext& context);
  virtual ~GradientReducer() = default;

  void begin_step(std::int64_t step);
  struct Gradient {
    Tensor whole;  // [padded], to be added to in this pass
    bool unset;    // all is zero but the ranges of products, which hold anything
  };
  // See UnitStore::gradients.
  Gradient gradient(int unit, std::span<const ElementRange> products);
  // The pass has added all of it.
  void ready(int unit);
  // Instead of ready(): the pass is not part of the step, whose gradients begin_step() has to begin again.
  void discard(int unit) { units_[static_cast<std::size_t>(unit)].open = false; }
  bool in_first_pass(int unit) const { return units_[static_cast<std::size_t>(unit)].passes == 0; }
  bool all_passes_begun(int unit) const {
    return units_[static_cast<std::size_t>(unit)].passes == context_.passes;
  }
  // After the last pass: waits until a unit is reduced, but over replicas, or all units are.
  void finish(int unit) { complete(unit); }
  void finish();
  // This rank's shard of the sum, [shard_size], valid after finish and until the next step begins: f32, but
  // of the gradients' own type where nothing else is summed. It may rest on the host.
  virtual Tensor reduced(int unit) = 0;

 protected:
  // Starts the reduction of the unit's gradient after this pass.
  virtual Request start(int unit) = 0;
  // Uses the result of a finished reduction.
  virtual void done(int unit, bool last_pass) = 0;
  virtual void forget() {}  // drops the sums, when a step begins

  Communicator& group(std::unique_ptr<Communicator>& group, int unit);  // with the unit as its purpose
  Tensor shard_of(const Tensor& whole, int unit) const;

  ReducerContext context_;
  std::vector<Request> over_replicas_;  // of each unit, waited for by finish

 private:
  struct Unit {
    int passes = 0;     // begun reductions
    bool open = false;  // the model is adding to it
    bool under_way = false;
    Request request;
  };
  void complete(int unit);
  void zero_between(const Tensor& whole, std::span<const ElementRange> products);
  const UnitBuffers& exchange() const;  // the buffers of gradients under way

  std::vector<Unit> units_;
  std::vector<int> in_slot_, in_exchange_;  // the unit whose gradient a buffer holds, -1 for none
  std::int64_t step_ = 0;
};

// Adds in the order of the communicator; first over passes, where gradients are whole.
std::unique_ptr<GradientReducer> make_direct_reducer(const ReducerContext& context);
// Sends the gradients of every micro-batch to the owner of each piece, which adds them as a tree
// (gradient_tree.h).
std::unique_ptr<GradientReducer> make_ordered_reducer(const ReducerContext& context);

}  // namespace shoal
