// The data-parallel engine: it owns the parameters, their gradients and the optimizer's state, and reduces
// and updates them. The model sees it as a UnitStore, the trainer as the steps below.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "model/unit_store.h"
#include "optim/adamw.h"

namespace shoal {

struct EngineOptions {
  DType compute = DType::f32;
  AdamWConfig adamw;
  double grad_clip = 0;  // of the whole model's gradient norm; 0 is off
  bool training = true;  // false: parameters only, for evaluation and sampling
};

// A tensor of the run's state as a checkpoint sees it: "transformer.wte.weight",
// "optimizer.m.transformer.wte.weight", ...
struct StateTensor {
  std::string name;
  Tensor data;  // float32, in the backend's memory, without padding
};

class DataEngine : public UnitStore {
 public:
  // Fresh parameters, addressed by the seed.
  virtual void initialize(std::uint64_t seed) = 0;

  // Gradients are zero; `micro_batches` backward passes follow on this rank.
  virtual void begin_step(int micro_batches) = 0;
  // Waits for the reductions and returns the norm of the whole model's gradient, not yet clipped; it may be
  // infinite or NaN, and then the caller decides between update and giving the step up.
  virtual double gradient_norm() = 0;
  // Clips and applies update number `update`, counted from 1, at this learning rate.
  virtual void update(double lr, std::int64_t update) = 0;
  // The first tensor, parameters before gradients, that holds a value that is not finite; "" if there is
  // none.
  virtual std::string first_bad_tensor() = 0;

  // Every tensor that a checkpoint holds: parameters, and with `optimizer` the moments.
  virtual std::vector<StateTensor> state(bool optimizer) = 0;
  // The parameters were written through state(): refreshes what is derived from them.
  virtual void state_loaded() = 0;

  virtual const std::vector<UnitSpec>& units() const = 0;

  // Bytes of parameters, gradients and optimizer state that the engine would take.
  struct Memory {
    std::size_t weights = 0, compute_copy = 0, gradients = 0, optimizer = 0;
    std::size_t total() const { return weights + compute_copy + gradients + optimizer; }
  };
};

// Every rank holds everything; gradients are all-reduced per unit while backward goes on.
std::unique_ptr<DataEngine> make_replicated_engine(Backend& backend, Communicator& group,
                                                   const GptConfig& config, const EngineOptions& options);
DataEngine::Memory replicated_memory(const GptConfig& config, DType compute, bool training = true);

}  // namespace shoal
