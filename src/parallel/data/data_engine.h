// The data-parallel engine: it owns the parameters, their gradients and the optimizer's state, and reduces
// and updates them. The model sees it as a UnitStore, the trainer as the steps below.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/unit_store.h"
#include "parallel/data/engine_options.h"
#include "parallel/mesh.h"

namespace shoal {

// What a step does to the parameters.
struct Update {
  double lr = 0;
  std::int64_t number = 1;  // counted from 1
};

// A part of a tensor of the run's state, as a checkpoint sees it: "transformer.wte.weight",
// "optimizer.m.transformer.wte.weight", ...
struct StateTensor {
  std::string name;
  Shape shape;             // of the whole tensor
  Box box;                 // of it, that this rank's part of the model has
  std::int64_t first = 0;  // of the elements that are here, in the row-major order of the box
  Tensor data;             // float32 [elements that are here], in the backend's memory or where it rests
};

class DataEngine : public UnitStore {
 public:
  // Fresh parameters, addressed by the seed.
  virtual void initialize(std::uint64_t seed) = 0;

  // The micro-batches of a step are dealt like cards: pass p of this rank is micro-batch p * ranks +
  // first_micro_batch(). Every rank does passes() of them; where there is no such micro-batch any more, it
  // passes targets that are all ignored.
  virtual int passes() const = 0;
  virtual int first_micro_batch() const = 0;

  // Gradients are zero; passes() backward passes follow on this rank.
  virtual void begin_step(std::int64_t step, const Update& update = {}) = 0;
  // Ends the reductions and measures the whole model's gradient.
  virtual void measure_gradient() = 0;
  // Its norm, the same on every rank of the worker, not clipped; it may be infinite or NaN. Waits for the
  // backend.
  virtual double gradient_norm() = 0;
  // After measure_gradient: clips and applies the step's update. Where the norm or one of `losses` f64 [n]
  // (may be empty) is not finite, leaves it out; a worker averages with others all the same.
  virtual void update(const Tensor& losses = {}) = 0;
  // Leaves it out.
  virtual void skip_update() = 0;
  // The first tensor, parameters before gradients, of which this rank holds a value that is not finite; "" if
  // there is none. Other ranks may see another one.
  virtual std::string first_bad_tensor() = 0;

  // Every tensor that a checkpoint holds: parameters, and with `optimizer` its state.
  enum class Share {
    held,     // all that this rank holds: to be read from a checkpoint
    to_save,  // its part of what the ranks hold together, each element on one rank: to be written
  };
  virtual std::vector<StateTensor> state(bool optimizer, Share share) = 0;
  // The parameters were written through state(held) on every rank: refreshes what is derived from them.
  virtual void state_loaded() = 0;

  // Gossip, between steps; collective over the mesh. Puts the mean of all workers' models in the place of
  // each one's own, until it is dropped or kept. Returns the consensus distance, sqrt(mean_i ||y_i -
  // mean||^2) / ||mean||. Meanwhile the own models are where gradients are during a step.
  virtual double show_average() = 0;
  virtual void drop_average() = 0;
  virtual void keep_average() = 0;  // all workers go on from it
};

// Synchronous data parallelism over mesh.data(): every rank applies the gradient of its worker's batch to its
// part of the model. Over mesh.peers() workers average their models (parallel/gossip/mixer.h). Over
// mesh.tensor() the gradients of what tensor ranks have in common are added, over mesh.ends() those of the
// matrix that embedding and head share, over mesh.model() the squares of the norm.
std::unique_ptr<DataEngine> make_data_engine(Backend& backend, Mesh& mesh, const GptConfig& config,
                                             const EngineOptions& options);
// What it would take on a rank, of `ranks` data ranks, with options.part.
EngineMemory engine_memory(const GptConfig& config, const EngineOptions& options, int ranks = 1);

}  // namespace shoal
