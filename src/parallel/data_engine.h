// The data-parallel engine: it owns the parameters, their gradients and the optimizer's state, and reduces
// and updates them. The model sees it as a UnitStore, the trainer as the steps below.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/unit_store.h"
#include "optim/adamw.h"
#include "parallel/mesh.h"

namespace shoal {

struct EngineOptions {
  ModelPart part = {};  // which this rank has
  DType compute = DType::f32;
  AdamWConfig adamw = {};
  double grad_clip = 0;  // of the whole model's gradient norm; 0 is off
  bool training = true;  // false: parameters only, for evaluation and sampling

  // How the data ranks share the state (ZeRO, Rajbhandari et al. 2020): 0 each holds everything, 1 optimizer
  // state and master weights are sharded, 2 and gradients, 3 and parameters. Sharded over ranks / replicate
  // neighbouring ranks, replicated between such groups.
  int zero = 0;
  int replicate = 1;

  // The gradients of the global batch's micro-batches are added as one binary tree over their index, so that
  // every number of ranks, stage and communicator gives the same bits.
  bool layout_exact = false;
  int micro_batches = 1;       // of the global batch, over all ranks
  DType reduced = DType::f32;  // what gradients travel in between ranks; sums are float32 always

  // Where given, a file of this rank's in that folder holds the master weights, the moments and, where they
  // are sharded, the gradients, mapped into memory.
  std::filesystem::path offload = {};
};

// A part of a tensor of the run's state, as a checkpoint sees it: "transformer.wte.weight",
// "optimizer.m.transformer.wte.weight", ...
struct StateTensor {
  std::string name;
  Shape shape;             // of the whole tensor
  Box box;                 // of it, that this rank's part of the model has
  std::int64_t first = 0;  // of the elements that are here, in the row-major order of the box
  Tensor data;             // float32 [elements that are here], in the backend's memory
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
  virtual void begin_step(std::int64_t step) = 0;
  // Waits for the reductions and returns the norm of the whole model's gradient, the same on every rank of
  // the mesh, not yet clipped; it may be infinite or NaN, and then the caller decides between update and
  // giving the step up.
  virtual double gradient_norm() = 0;
  // Clips and applies update number `update`, counted from 1, at this learning rate.
  virtual void update(double lr, std::int64_t update) = 0;
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

  virtual const std::vector<UnitSpec>& units() const = 0;

  // Bytes that the engine takes on one rank.
  struct Memory {
    std::size_t weights = 0;       // float32 master weights, this rank's part
    std::size_t compute_copy = 0;  // of the type of the products where that is another, or gathered
    std::size_t gradients = 0;
    std::size_t optimizer = 0;
    std::size_t exchange = 0;  // buffers of reductions, partial sums of the layout-exact tree
    std::size_t on_disk = 0;   // beside the above, in a mapped file
    std::size_t total() const { return weights + compute_copy + gradients + optimizer + exchange; }
  };
};

// Synchronous data parallelism over mesh.data(): every rank applies the gradient of the global batch to its
// part of the model. Over mesh.tensor() the gradients of what tensor ranks have in common are added, over
// mesh.ends() those of the matrix that embedding and head share, over mesh.model() the squares of the norm.
std::unique_ptr<DataEngine> make_data_engine(Backend& backend, Mesh& mesh, const GptConfig& config,
                                             const EngineOptions& options);
// What it would take on a rank, of `ranks` data ranks, with options.part.
DataEngine::Memory engine_memory(const GptConfig& config, const EngineOptions& options, int ranks = 1);

}  // namespace shoal
