// A GPT-2 over its units: the embedding, the blocks and the head in order, or a range of them, which is what
// a pipeline stage has. Architecture: Radford et al. 2019 (pre-norm, learned positions, tied head), as in
// nanoGPT.
#pragma once

#include <vector>

#include "model/layers.h"

namespace shoal {

struct GptOptions {
  BatchShape batch;
  DType compute = DType::f32;
  LogitsPlan logits = {};
  Recompute recompute = Recompute::none;
  bool backward = true;  // false: evaluation only, one block's activations suffice

  // Of a pipeline stage. Micro-batches may be under way between their forward and backward passes: the
  // inputs, sets of activations and gradients that are there at a time.
  UnitRange units = {};  // empty: all
  int inputs = 1, activations = 1, gradients = 1;
};

// One micro-batch of token ids on the backend: tokens, targets i32 [B, T]; a negative target is ignored.
struct TokenBatch {
  Tensor tokens, targets;
  BatchAddress address;
};

class Gpt {
 public:
  // Takes all the memory it will ever need from the backend; with `shared`, a workspace of another range of
  // the same sizes, that is not taken again. Throws Error when the sizes do not fit together.
  Gpt(Backend& backend, UnitStore& store, const GptConfig& config, const GptOptions& options,
      const TensorGroup& tensor = {}, const Workspace* shared = nullptr);

  // --- a micro-batch through all units
  // Adds the summed loss of the micro-batch to `loss` f64 [1], and every gradient, scaled, to the store.
  void train(const TokenBatch& batch, const Tensor& loss, float scale);
  // Adds the summed loss; the most likely next tokens are then in predictions(). Dropout is off.
  void evaluate(const TokenBatch& batch, const Tensor& loss);
  // i32 [B, T], of the last evaluate of a range with the head.
  Tensor predictions() const {
    return buffers_.head.argmax.reshaped({options_.batch.batch, options_.batch.positions});
  }

  // --- the same in the steps of a pipeline; which buffers a micro-batch has is the caller's
  bool first() const { return options_.units.begin == 0; }                  // the embedding makes the input
  bool last() const { return options_.units.end == config().n_layer + 2; }  // the head takes the output
  Tensor input(int i) const { return buffers_.inputs[static_cast<std::size_t>(i)]; }        // a stream
  Tensor gradient(int i) const { return buffers_.gradients[static_cast<std::size_t>(i)]; }  // a stream
  struct Place {
    int input = 0, activations = 0, gradient = 0;
  };
  // From input(place.input), which is there already but for the first range, to `out`, a stream that the
  // caller gives but to the last range. Where batch.address.training is off, nothing is kept for backward.
  void forward(const TokenBatch& batch, const Place& place, const Tensor& out);
  // gradient(place.gradient), which is that of the output but for the last range, becomes that of the input.
  void backward(const TokenBatch& batch, const Place& place, const Tensor& loss, float scale);
  // After forward, of the last range.
  void evaluate_head(const TokenBatch& batch, const Place& place, const Tensor& loss);

  const Workspace& workspace() const { return buffers_.work; }
  const GptConfig& config() const { return context_.config; }
  const GptOptions& options() const { return options_; }

  // What the constructor would take, in bytes, by part.
  struct Memory {
    std::size_t blocks = 0;   // what blocks keep for their backward pass
    std::size_t streams = 0;  // the residual stream between blocks, and its gradients
    std::size_t workspace = 0;
    std::size_t head = 0;  // the final norm and one chunk of logits
    std::size_t total() const { return blocks + streams + workspace + head; }
  };
  static Memory memory(const GptConfig& config, const GptOptions& options, const TensorPlace& place = {},
                       bool shared_workspace = false);

 private:
  // What a micro-batch keeps from its forward pass to its backward pass, but for the input.
  struct Set {
    std::vector<Tensor> streams;         // outputs of the blocks, of the last one where the head follows
    std::vector<BlockActivations> kept;  // one per block; none with Recompute::block
  };
  struct Buffers {
    std::vector<Tensor> inputs, gradients;
    std::vector<Set> sets;
    BlockActivations shared;  // of all blocks, with Recompute::block or without backward
    Workspace work;
    Head::Activations head;
  };
  static Memory carve(Arena& arena, Buffers& buffers, const GptConfig& config, const GptOptions& options,
                      const TensorPlace& place, bool shared_workspace);

  int blocks() const { return static_cast<int>(blocks_.size()); }
  const BlockActivations& kept(const Place& place, int block) const;
  // The input of a block, or for the number of blocks the last one's output.
  Tensor stream(const Place& place, int block) const;
  BranchSum block_forward(const TokenBatch& batch, const Place& place, int block, const BranchSum& before,
                          bool whole);
  bool has_to_recompute(const Place& place, int block) const;

  LayerContext context_;
  GptOptions options_;
  Arena arena_;
  Buffers buffers_;
  std::vector<Block> blocks_;
  int held_set_ = -1, held_block_ = -1;  // whose activations buffers_.shared holds
};

}  // namespace shoal
