// The data-parallel engine: it owns the parameters, their gradients and the optimizer's state, and reduces
// and updates them: ZeRO 0 to 3, replicated groups, sums in the order of the micro-batches, and workers that
// average their models. The model sees it as a UnitStore, the trainer as the steps below.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/unit_store.h"
#include "parallel/data/gradient_norm.h"
#include "parallel/data/gradient_reducer.h"
#include "parallel/data/matrix_dealer.h"
#include "parallel/data/optimizer_state.h"
#include "parallel/data/weight_store.h"
#include "parallel/gossip/mixer.h"
#include "parallel/gossip/outer_optimizer.h"
#include "parallel/gossip/workers_average.h"

namespace shoal {

// The learning rate of a step's update, and the number of the update.
struct Update {
  double lr = 0;
  std::int64_t number = 1;  // counted from 1
};

// A rank's part of a tensor of the run's state: "transformer.wte.weight",
// "optimizer.m.transformer.wte.weight", ...
struct StateTensor {
  std::string name;
  Shape shape;             // of the whole tensor
  Box box;                 // the box of it that this rank's part of the model has
  std::int64_t first = 0;  // the first element that is here, in the row-major order of the box
  Tensor data;             // f32 [elements that are here], in the backend's memory or where it rests
  bool adapter = false;    // of an adapter
};

// The weights' moving average in checkpoints.
inline constexpr std::string_view kAverageState = "ema";

struct OptimizerBuffers {
  std::vector<OptimizerState> state;           // in the order of Optimizer::state_names()
  std::optional<OptimizerState> average = {};  // the weights' moving average, kAverageState
  Tensor scalars;                              // f32 [Optimizer::scalar_count()]
  Tensor clip;                                 // f32 [1], the factor of every gradient
};

// All memory of an engine, carved by its parts.
struct EngineBuffers {
  WeightBuffers weights;
  StreamBuffers stream;
  OptimizerBuffers optimizer;
  GradientBuffers gradients;
  MatrixBuffers matrices;  // where the optimizer takes hidden matrices as wholes
  NormBuffers norm;
  Tensor squares;  // f64 [1], of a part of the gradient
  Tensor mixed;    // with several workers: f32 [trained / shards], the parameters under way
  AverageBuffers average;
  std::optional<OuterBuffers> outer;  // with an outer optimizer

  // The plans of all parameters, of those that are trained, and of their gradients.
  static EngineBuffers take(EngineArenas& arenas, const ShardPlan& parameters, const ShardPlan& trained,
                            const ShardPlan& gradients, const EngineOptions& options);
};

// Over mesh.data(), every rank applies the gradient of its worker's batch to its part of the model. Over
// mesh.peers(), workers average their models. Over mesh.tensor(), gradients of parameters that all tensor
// ranks hold are added; over mesh.ends(), those of the matrix that embedding and head share; over
// mesh.model(), the squares of the norm.
class DataEngine final : public UnitStore {
 public:
  // Takes all memory that it needs. Collective over the mesh; all arguments but the options must outlive it.
  DataEngine(Backend& backend, Mesh& mesh, const GptConfig& config, const EngineOptions& options);

  const std::vector<UnitSpec>& units() const override { return plan_.units(); }
  // Sets fresh parameters, addressed by the seed.
  void initialize(std::uint64_t seed);

  // Puts the weights of products in 8 bits (ops/int8.h), for evaluation and generation alone: the parameters
  // are no state any more. Throws UserError where the backend has no such products, ranks share the
  // weights (ZeRO 3), or a matrix is too narrow.
  void to_int8();

  UnitView weights(int unit) override {
    await_update(unit);
    return weights_.use(unit);
  }
  void release(int unit) override { weights_.release(unit); }
  UnitView gradients(int unit, std::span<const ElementRange> products) override;
  UnitView tied_gradients(std::span<const ElementRange> products) override {
    return gradients(std::max(tied_unit_, 0), products);
  }
  void gradients_ready(int unit) override;

  // Micro-batches are assigned round-robin: pass p of this rank is micro-batch p * ranks +
  // first_micro_batch() of the step. Every rank makes passes() passes; one without a micro-batch passes
  // targets that are all ignored.
  int passes() const { return (options_.micro_batches + plan_.ranks() - 1) / plan_.ranks(); }
  int first_micro_batch() const { return plan_.piece(); }

  // Begins a step with zero gradients; passes() backward passes follow on this rank.
  void begin_step(std::int64_t step, const Update& update = {});
  // Ends the reductions and measures the whole model's gradient.
  void measure_gradient();
  // The norm, the same on every rank of the worker, before clipping; it may be infinite or NaN. Waits for the
  // backend.
  double gradient_norm();
  // After measure_gradient: clips and applies the step's update. Where the norm or one of `losses` f64 [n]
  // (may be empty) is not finite, no parameter changes; workers average all the same.
  void update(const Tensor& losses = {});
  // Whether backward passes already change parameters, before update().
  bool updates_in_backward() const { return by_bucket(); }
  // In place of update(): workers average, parameters do not change.
  void skip_update();

  // Reads a unit's whole gradient of one micro-batch on this rank, before it is reduced or added to.
  using GradientReader = std::function<void(const UnitView& gradient)>;
  // Reads the gradients of the first pass of each step; an empty reader ends this.
  void read_first_pass(GradientReader reader) { reader_ = std::move(reader); }
  // Reads the gradients of `pass`, forward and backward passes of one micro-batch that belongs to no step.
  // Called before a step begins, or when a step is given up, whose gradients are lost.
  void read_apart(GradientReader reader, const std::function<void()>& pass);

  // The first tensor of this rank with a value that is not finite, parameters before gradients; "" if there
  // is none.
  std::string first_bad_tensor();

  // The tensors that a checkpoint holds: parameters, and with `optimizer` its state. Collective over the
  // workers where an outer optimizer has something under way, which arrives first.
  enum class Share {
    held,     // all that this rank holds: to be read from a checkpoint
    to_save,  // its part of what the ranks hold together, each element on one rank: to be written
  };
  std::vector<StateTensor> state(bool optimizer, Share share);
  // Refreshes what is derived from the parameters, after state(held) was written on every rank, with or
  // without the optimizer's. `equal`: the workers did not differ when it was saved, or before the first step.
  void state_loaded(bool optimizer = true, bool equal = false);

  // Between steps; collective over the mesh. show_average() puts what is evaluated in the place of the model,
  // until it is dropped or kept: the mean of all workers' models, or the weights' moving average. It returns
  // the consensus distance, sqrt(mean_i ||y_i - mean||^2) / ||mean||. Meanwhile the own model lies where
  // gradients are during a step.
  double show_average();
  void drop_average();
  void keep_average() {
    if (mixer_ && !mixer_->equal()) mixer_->set_different();  // as in a run that is resumed here
  }
  // Whether the workers have different models, as far as is known without comparing them.
  bool workers_differ() const { return average_ && !(mixer_ ? mixer_->equal() : outer_->equal()); }

 private:
  int head() const { return plan_.head(); }
  bool by_bucket() const { return options_.by_bucket(); }
  bool shows_average() const { return buffers_.optimizer.average || workers_differ(); }
  bool is_finite(const Tensor& x);
  void add_shared_gradients();
  void update_in_backward(int unit);
  void apply(const Bucket& bucket, bool with_update);
  void update_unit(int unit);
  Backend::Event* updated(int unit) const;  // null without mode_.updates_later
  void await_update(int unit);
  void await_updates();
  void direct_matrices(const Bucket& bucket);
  void begin_average();
  void add_to_average();
  void done_with(int unit);
  void weights_replaced();

  Backend& backend_;
  Mesh& mesh_;
  EngineOptions options_;
  bool tied_;  // embedding and head share a matrix
  std::unique_ptr<Optimizer> optimizer_;
  ShardPlan plan_, trained_, gradient_plan_;
  EngineMode mode_;
  EngineArenas arenas_;
  EngineBuffers buffers_;
  StateStream stream_;
  DataGroups groups_;
  WeightStore weights_;
  std::vector<Bucket> buckets_;         // of units that are updated together
  std::optional<MatrixDealer> dealer_;  // where the optimizer takes hidden matrices as wholes
  GradientNorm norm_;
  std::optional<OuterOptimizer> outer_;
  // Set when there are several workers, the mixer where no outer optimizer is there:
  std::optional<Mixer> mixer_;
  std::optional<WorkersAverage> average_;
  std::unique_ptr<GradientReducer> reducer_;
  // The end of each unit's last update, with mode_.updates_later. Every update follows the forward passes of
  // its step, and so the end of the one before.
  std::vector<std::unique_ptr<Backend::Event>> updated_;
  GradientReader reader_;  // may be empty
  bool apart_ = false;     // the pass is not part of a step
  int tied_unit_ = -1;     // the unit of the gradient of the head's use of the embedding, where that is apart
  std::int64_t step_ = 0;
};

// The memory of an engine on a rank, of `ranks` data ranks, with options.part.
EngineMemory engine_memory(const GptConfig& config, const EngineOptions& options, int ranks = 1);
// The same with gpt_units() of this part.
EngineMemory engine_memory(const GptConfig& config, std::vector<UnitSpec> units, const EngineOptions& options,
                           int ranks);

}  // namespace shoal
