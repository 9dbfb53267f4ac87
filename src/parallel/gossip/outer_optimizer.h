// An optimizer around the workers' own: every `interval` steps the movement of the models since the last time
// is averaged over a group of workers, and given to SGD with momentum, which moves the model that all of the
// group go on from. DiLoCo (Douillard et al. 2023); with groups of neighbours NoLoCo (Kolehmainen et al.
// 2025); with one worker SNOO (Kallusky et al. 2025); in fragments, while workers go on training, Streaming
// DiLoCo (Douillard et al. 2025).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/data/gradient_reducer.h"
#include "parallel/data/optimizer_state.h"
#include "parallel/data/weight_store.h"
#include "parallel/gossip/outer_options.h"
#include "parallel/gossip/topology.h"

namespace shoal {

struct OuterBuffers {
  std::vector<OptimizerState> state;  // in the order of kOuterStates
  // Buffers for the largest fragment: the movement f32, where it has memory of its own; what is sent of it,
  // bf16 [elements] or packed i32 [blocks, words]; and the packed blocks that are received.
  Tensor movement, sent, received;

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
  // The state was loaded, and the workers' models with it, which are equal or not.
  void loaded(bool equal) { equal_ = equal; }
  // After the update of step `step`; collective over the peers. The memory of gradients is used.
  void step(GradientReducer& reducer, std::int64_t step);
  // Waits for what is under way, and moves the model that workers will go on from: before state is read.
  // Collective over the peers; the memory of gradients is used.
  void arrive(GradientReducer& reducer);
  // Whether all workers have the same model.
  bool equal() const { return equal_; }

 private:
  struct Sent {
    int unit;
    Tensor movement, sent = {}, received = {};
    std::string purpose = {};  // of its messages
    Request exchange = {};
    bool summed = false;  // int4: the sums are under way
  };
  int members() const { return group_ ? group_->size() : 1; }
  OptimizerState& state(std::size_t which) { return buffers_.state[which]; }
  void send(GradientReducer& reducer, std::int64_t update);
  void pack(const Sent& unit);
  void pass_sums_on();  // of an int4 exchange
  void unpack(const Sent& unit);
  void move(int unit, const Tensor& movement, const Tensor& scratch);
  void go_on(GradientReducer& reducer, std::int64_t update);

  StateStream& stream_;
  Backend& backend_;
  const ShardPlan& plan_;
  WeightStore& weights_;
  OuterBuffers buffers_;
  OuterOptions options_;
  std::vector<std::unique_ptr<Communicator>> rounds_;  // this worker's group in each
  std::vector<Sent> under_way_;                        // of one fragment
  Communicator* group_ = nullptr;                      // that it is under way in; none: it stays here
  bool of_all_ = true;                                 // a move is of the whole model, and of all workers
  // Members of a group have models x of their own, which the mean of the workers' models y draws together:
  // the movement is x - mean y, which for equal x is the mean of x - y.
  bool sends_models_ = false;
  bool equal_ = true;
};

}  // namespace shoal
