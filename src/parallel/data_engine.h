// The data-parallel engine: it owns the parameters, their gradients and the optimizer's state, and reduces
// and updates them. The model sees it as a UnitStore, the trainer as the steps below.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/unit_store.h"
#include "optim/adamw.h"
#include "parallel/mesh.h"
#include "parallel/topology.h"

namespace shoal {

// Decentralised training (gossip): a worker takes its gradient where its model is, and applies it to the mean
// of its group's models, which have been under way since each one's last update. "From promise to practice:
// realizing high-performance decentralized training" (Wang et al. 2024).
struct GossipOptions {
  Topology topology;  // of mesh.peers()
  double bucket_bytes = 25 << 20;
  // A bucket's update is in the backward pass, behind the last of its gradients, and clipped by its own norm.
  // For workers of one rank, and sums of no fixed order.
  bool clip_by_bucket = false;
};

struct EngineOptions {
  ModelPart part = {};  // which this rank has
  DType compute = DType::f32;
  AdamWConfig adamw = {};
  Decay decay = Decay::matrices;
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
  int micro_batches = 1;       // of the global batch, over all ranks; with gossip, over those of a worker
  DType reduced = DType::f32;  // what gradients travel in between ranks; sums are float32 always

  // Where given, a file of this rank's in that folder holds the master weights, the moments and, where they
  // are sharded, the gradients, mapped into memory.
  std::filesystem::path offload = {};
  // The backend has memory of its own, and all that rests in the host's: in that file, or pinned where there
  // is none. With zero = 3 that is also this rank's part of the parameters for the products.
  bool on_host = false;
  std::int64_t streamed = std::int64_t{4}
                          << 20;  // elements of a piece that goes through the backend's memory

  std::optional<GossipOptions> gossip = {};
};

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

  virtual const std::vector<UnitSpec>& units() const = 0;

  // Bytes that the engine takes on one rank.
  struct Memory {
    std::size_t weights = 0;       // float32 master weights, this rank's part
    std::size_t compute_copy = 0;  // of the type of the products where that is another, or gathered
    std::size_t gradients = 0;
    std::size_t optimizer = 0;
    std::size_t exchange = 0;   // buffers of reductions and of gossip, partial sums of the layout-exact tree
    std::size_t streaming = 0;  // buffers that what rests on the host goes through
    std::size_t on_host = 0;    // beside the above, pinned in the host's memory
    std::size_t on_disk = 0;    // beside the above, in a mapped file
    std::size_t total() const {
      return weights + compute_copy + gradients + optimizer + exchange + streaming;
    }
  };
};

// Synchronous data parallelism over mesh.data(): every rank applies the gradient of its worker's batch to its
// part of the model. Over mesh.peers() workers average their models (parallel/mixer.h). Over mesh.tensor()
// the gradients of what tensor ranks have in common are added, over mesh.ends() those of the matrix that
// embedding and head share, over mesh.model() the squares of the norm.
std::unique_ptr<DataEngine> make_data_engine(Backend& backend, Mesh& mesh, const GptConfig& config,
                                             const EngineOptions& options);
// What it would take on a rank, of `ranks` data ranks, with options.part.
DataEngine::Memory engine_memory(const GptConfig& config, const EngineOptions& options, int ranks = 1);

}  // namespace shoal
