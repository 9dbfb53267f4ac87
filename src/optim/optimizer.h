// Optimizers: the tensors that one keeps beside each parameter, and its update of a shard. The engine
// (parallel/data/data_engine.h) cuts parameters into shards, iterates over them, and knows no optimizer.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/kernels.h"
#include "optim/muon.h"

namespace shoal {

// The settings of an optimizer, one type for each.
using OptimizerOptions = std::variant<AdamWConfig, MuonConfig>;

// Equal ranges of a rank's shards; all f32 [n] but `compute`.
struct OptimizerShard {
  Tensor weights = {};
  Tensor compute = {};                 // the bf16 copy of the weights for products; empty where there is none
  std::span<const Tensor> state = {};  // in the order of state_names()
  Tensor gradient = {};
  const float* gradient_scale = nullptr;  // one float in the backend's memory; NaN: nothing changes
  Backend::Event* done = nullptr;         // where others wait for the update: it may end later
  bool decayed = true;                    // whether weight decay applies to these parameters
  bool matrix = false;                    // of hidden matrices, where the optimizer takes those as wholes
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // The tensors kept beside each parameter, of its shape, f32, zero at first. Checkpoints have the tensor "m"
  // of a parameter as "optimizer.m.PARAMETER".
  virtual std::vector<std::string_view> state_names() const = 0;
  // The same in words, a literal: "two moments".
  virtual std::string_view state_text() const = 0;
  // Floats of memory for the scalars that change from step to step.
  virtual std::int64_t scalar_count() const = 0;

  // Sets the scalars of update `number`, counted from 1. `scalars` f32 [scalar_count()], in the backend's
  // memory.
  virtual void begin_step(Backend& backend, const Tensor& scalars, double lr, std::int64_t number) = 0;
  // Updates a shard with them.
  virtual void update(Backend& backend, const OptimizerShard& shard) = 0;

  // Whether the update of a hidden matrix depends on all of it. Then direct() makes the gradient of a shard a
  // direction, in its place; transform() changes the direction of a whole matrix; and update() takes that in
  // place of the gradient.
  virtual bool takes_whole_matrices() const { return false; }
  virtual void direct(Backend& /*backend*/, const OptimizerShard& /*shard*/) {}
  virtual void transform(Backend& /*backend*/, const WholeMatrix& /*matrix*/,
                         const MatrixWorkspace& /*workspace*/) {}
  // The first so many tensors of state_names() are kept beside hidden matrices; the others are not.
  virtual std::size_t matrix_states() const { return state_names().size(); }
};

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options);
// One overload for each type of settings, in a file of the optimizer's own.
std::unique_ptr<Optimizer> make_optimizer(const AdamWConfig& config);
std::unique_ptr<Optimizer> make_optimizer(const MuonConfig& config);

}  // namespace shoal
