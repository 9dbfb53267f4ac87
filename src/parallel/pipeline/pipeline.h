// A model over the ranks of a mesh that hold it together: this rank's part of the units, and the steps of a
// schedule (parallel/pipeline/schedule.h) that passes micro-batches through all parts. One stage is the plain
// case.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/gpt.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/schedule.h"

namespace shoal {

struct PipelineOptions {
  BatchShape batch;
  DType compute = DType::f32;
  DType stream = DType::f32;  // see GptOptions
  LogitsPlan logits = {};
  Recompute recompute = Recompute::none;
  std::vector<int> recompute_blocks = {};  // of each range, its first; one number: of all; empty: all blocks
  bool backward = true;                    // false: evaluation only
  ModelPart part = {};                     // of this rank: its number in the tensor group, its chunks
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int stages = 1;
  int micro_batches = 1;  // of a step on a data rank
  bool operator==(const PipelineOptions&) const = default;

  // How many of a range's blocks are recomputed; -1: all. Ranges are numbered in the model's order.
  int recomputed_blocks(int range) const;
};

class Pipeline {
 public:
  // Takes all the memory it will ever need from the backend.
  Pipeline(Backend& backend, UnitStore& store, Mesh& mesh, const GptConfig& config,
           const PipelineOptions& options);
  ~Pipeline();

  // Forward and backward passes of a step's micro-batches; their tokens are used on the first stage, their
  // targets on the last. Where has_loss(), adds their summed losses to losses f64 [micro_batches], or to the
  // first of each row of losses f64 [micro_batches, n]; adds every gradient, scaled, to the store.
  void train(std::span<const TokenBatch> batches, const Tensor& losses, float scale);
  // The same of one micro-batch alone.
  void train_one(const TokenBatch& batch, const Tensor& loss, float scale);
  // One batch through all stages, dropout off. Where has_loss(), adds its summed loss to loss f64 [1], and
  // the most likely next tokens are in predictions(). A stage returns when its own part is done.
  void evaluate(const TokenBatch& batch, const Tensor& loss);
  Tensor predictions() const;  // i32 [B, T]
  Tensor losses() const;       // f32 [B, T], of every token
  // Whether losses come out here: on the last stage.
  bool has_loss() const;

  const PipelineOptions& options() const { return options_; }

  // The memory that the constructor would take on a rank of that stage.
  static Gpt::Memory memory(const GptConfig& config, const PipelineOptions& options, int stage);

 private:
  struct Chunk;
  struct Step;
  static std::vector<GptOptions> chunk_options(const GptConfig& config, const PipelineOptions& options,
                                               int stage);
  struct Outgoing;  // outputs on their way to the next stage

  void follow(const Action& action, const Step& step);
  void forward(Chunk& chunk, int micro_batch, const Step& step);
  void backward(Chunk& chunk, int micro_batch, const Step& step);
  // The number of the outgoing stream of a chunk's output.
  int output_key(int chunk, int micro_batch) const { return chunk * options_.micro_batches + micro_batch; }
  int next_stage() const { return (mesh_.coordinate().pipeline + 1) % options_.stages; }
  int previous_stage() const { return (mesh_.coordinate().pipeline + options_.stages - 1) % options_.stages; }

  Mesh& mesh_;
  PipelineOptions options_;
  std::vector<Action> actions_;  // of a step
  std::unique_ptr<Outgoing> outgoing_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
};

}  // namespace shoal
