// A GPT-2 over its units: the embedding, the blocks and the head in order, or a range of them on a pipeline
// stage. Architecture: Radford et al. 2019 (pre-norm, learned positions, tied head), as in nanoGPT.
#pragma once

#include <optional>
#include <vector>

#include "model/layers.h"

namespace shoal {

struct GptOptions {
  BatchShape batch;
  DType compute = DType::f32;
  DType stream = DType::f32;  // of the residual stream and its gradient: float32 or `compute`
  LogitsPlan logits = {};
  Recompute recompute = Recompute::none;
  int recompute_blocks = -1;          // the first so many of the range; -1: all
  bool workspace_recomputes = false;  // for other ranges with this one's workspace, if not for its own blocks
  bool backward = true;               // false: evaluation only, one block's activations suffice

  UnitRange units = {};  // of a pipeline stage; empty: all
  // The numbers of buffers for inputs, activations and gradients. A pipeline has several micro-batches
  // between their forward and backward passes.
  int inputs = 1, activations = 1, gradients = 1;
};

// One micro-batch of token ids on the backend: tokens, targets i32 [B, T]; a negative target is ignored.
struct TokenBatch {
  Tensor tokens, targets;
  BatchAddress address;
};

class Gpt {
 public:
  // Takes all the memory it will ever need from the backend, except for a workspace that it shares with
  // another range of the same sizes. Throws Error when the sizes do not fit together, or the store lacks a
  // parameter.
  Gpt(Backend& backend, UnitStore& store, const GptConfig& config, const GptOptions& options,
      const TensorGroup& tensor = {}, const Workspace* shared = nullptr);

  // --- a micro-batch through all units
  // Adds the summed loss of the micro-batch to `loss` f64 [1], and the gradients, scaled, to the store's.
  void train(const TokenBatch& batch, const Tensor& loss, float scale);
  // Adds the summed loss and leaves the most likely next tokens in predictions(). Dropout is off.
  void evaluate(const TokenBatch& batch, const Tensor& loss);
  // i32 [B, T], of the last evaluation by a range with the head.
  Tensor predictions() const {
    return buffers_.head.argmax.reshaped({options_.batch.batch, options_.batch.positions});
  }

  // f32 [B, T], of the same: each token's loss in nats, 0 where the target is ignored.
  Tensor losses() const {
    return buffers_.head.loss.reshaped({options_.batch.batch, options_.batch.positions});
  }

  // --- the steps of a pipeline; the caller assigns buffers to micro-batches
  bool first() const { return options_.units.begin == 0; }                  // the embedding makes the input
  bool last() const { return options_.units.end == config().n_layer + 2; }  // the head takes the output
  Tensor input(int i) const { return buffers_.inputs[static_cast<std::size_t>(i)]; }        // a stream
  Tensor gradient(int i) const { return buffers_.gradients[static_cast<std::size_t>(i)]; }  // a stream
  struct Slots {
    int input = 0, activations = 0, gradient = 0;
  };
  // Computes `out`, a stream, from input(slots.input), which the first range fills itself; the last range
  // keeps its output and takes no `out`. Where batch.address.training is off, nothing is kept for backward.
  void forward(const TokenBatch& batch, const Slots& slots, const Tensor& out);
  // gradient(slots.gradient) holds the gradient of the output, except in the last range, and receives that of
  // the input.
  void backward(const TokenBatch& batch, const Slots& slots, const Tensor& loss, float scale);
  // Adds the loss after forward, in the last range.
  void evaluate_head(const TokenBatch& batch, const Slots& slots, const Tensor& loss);

  const Workspace& workspace() const { return buffers_.work; }
  const GptConfig& config() const { return context_.config; }
  const GptOptions& options() const { return options_; }

  // The bytes that the constructor takes, by part.
  struct Memory {
    std::size_t blocks = 0;   // activations for the backward passes of blocks
    std::size_t streams = 0;  // the residual stream between blocks, and its gradients
    std::size_t workspace = 0;
    std::size_t head = 0;  // the final norm and one chunk of logits
    std::size_t total() const { return blocks + streams + workspace + head; }
  };
  static Memory memory(const GptConfig& config, const GptOptions& options, const TensorRank& tensor = {},
                       bool shared_workspace = false);

 private:
  // The activations of a micro-batch between its forward and backward passes, without the input.
  struct Set {
    std::vector<Tensor> streams;         // outputs of the blocks; of the last one only where the head follows
    std::vector<BlockActivations> kept;  // one per block; empty where Recompute::block recomputes it
  };
  struct Buffers {
    std::vector<Tensor> inputs, gradients;
    std::vector<Set> sets;
    BlockActivations shared;  // by blocks that Recompute::block recomputes; by all without backward
    Workspace work;
    Head::Activations head;
  };
  static Memory carve(Arena& arena, Buffers& buffers, const GptConfig& config, const GptOptions& options,
                      const TensorRank& tensor, bool shared_workspace);

  int blocks() const { return static_cast<int>(blocks_.size()); }
  const BlockActivations& kept(const Slots& slots, int block) const;
  // The input of a block; with the number of blocks, the output of the last one.
  Tensor stream(const Slots& slots, int block) const;
  bool has_to_recompute(const Slots& slots, int block) const;
  bool shares_activations(int block) const {
    return options_.recompute == Recompute::block && block < recomputed_;
  }

  LayerContext context_;
  GptOptions options_;
  int recomputed_;  // of the range's blocks, the first so many
  Arena arena_;
  Buffers buffers_;
  std::optional<EmbeddingLayer> embedding_;  // where the range has it
  std::vector<Block> blocks_;
  std::optional<Head> head_;             // where the range has it
  int held_set_ = -1, held_block_ = -1;  // the owner of the activations in buffers_.shared
};

}  // namespace shoal
