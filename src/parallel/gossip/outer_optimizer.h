// An optimizer around the workers' own: every `interval` steps the movement of the models since the last time
// is averaged over a group of workers, and given to SGD with momentum, which moves the model that all of the
// group go on from. DiLoCo (Douillard et al. 2023); with groups of neighbours NoLoCo (Kolehmainen et al.
// 2025); with one worker SNOO (Kallusky et al. 2025).
#pragma once

#include <memory>
#include <vector>

#include "parallel/data/gradient_reducer.h"
#include "parallel/data/optimizer_state.h"
#include "parallel/data/weight_store.h"
#include "parallel/gossip/outer_options.h"
#include "parallel/gossip/topology.h"

namespace shoal {

struct OuterBuffers {
  std::vector<OptimizerState> state;  // in the order of kOuterStates
  // For a unit: what is sent of it in bfloat16, or taken i32 [blocks * count], and what all of a group send.
  Tensor sent, received;

  // `resting` is the arena for state that may rest on the host.
  static OuterBuffers take(Arena& resting, Arena& exchange, const ShardPlan& plan,
                           const OuterOptions& options, int workers);
};

class OuterOptimizer {
 public:
  // Collective over `peers`; all must outlive this. With one worker there is no topology.
  OuterOptimizer(StateStream& stream, Backend& backend, Communicator& peers, const Topology* topology,
                 const ShardPlan& plan, WeightStore& weights, const OuterBuffers& buffers,
                 const OuterOptions& options);

  // Begins anew at the workers' models, which are equal.
  void begin();
  // The state was loaded, and the workers' models with it.
  void loaded() { equal_ = false; }
  // After the update of step `step`; collective over the peers. The memory of gradients is used.
  void step(GradientReducer& reducer, std::int64_t step);
  // Whether all workers have the same model.
  bool equal() const { return equal_; }

 private:
  OptimizerState& state(std::size_t which) { return buffers_.state[which]; }
  void set_purpose(Communicator& group, std::int64_t step, int unit) const;
  void exchange(Communicator* group, const Tensor& movement, int unit);
  void move(int unit, const Tensor& movement);

  StateStream& stream_;
  Backend& backend_;
  const ShardPlan& plan_;
  WeightStore& weights_;
  OuterBuffers buffers_;
  OuterOptions options_;
  std::vector<std::unique_ptr<Communicator>> rounds_;  // this worker's group in each
  bool of_all_ = true;                                 // each group is of all workers
  bool equal_ = true;
};

}  // namespace shoal
