// A GPT-2 over its units: the embedding, the blocks and the head in order, with the activations of one
// micro-batch. Architecture: Radford et al. 2019 (pre-norm, learned positions, tied head), as in nanoGPT.
#pragma once

#include <vector>

#include "model/layers.h"

namespace shoal {

enum class Recompute : std::uint8_t { none, block };

struct GptOptions {
  BatchShape batch;
  DType compute = DType::f32;
  Recompute recompute = Recompute::none;
  bool backward = true;  // false: evaluation only, one block's activations suffice
};

// One micro-batch of token ids on the backend: tokens, targets i32 [B, T]; a negative target is ignored.
struct TokenBatch {
  Tensor tokens, targets;
  BatchAddress address;
};

class Gpt {
 public:
  // Takes all the memory it will ever need from the backend. Throws Error when the sizes do not fit together.
  Gpt(Backend& backend, UnitStore& store, const GptConfig& config, const GptOptions& options);

  // Adds the summed loss of the micro-batch to `loss` f64 [1], and every gradient, scaled, to the store.
  void train(const TokenBatch& batch, const Tensor& loss, float scale);
  // Adds the summed loss; the most likely next tokens are then in predictions(). Dropout is off.
  void evaluate(const TokenBatch& batch, const Tensor& loss);
  // i32 [B, T], of the last evaluate.
  Tensor predictions() const {
    return head_.argmax.reshaped({options_.batch.batch, options_.batch.positions});
  }

  const GptConfig& config() const { return context_.config; }
  const GptOptions& options() const { return options_; }

  // What the constructor would take, in bytes.
  static std::size_t activation_bytes(const GptConfig& config, const GptOptions& options);

 private:
  struct Buffers;
  static Buffers carve(Arena& arena, const GptConfig& config, const GptOptions& options);
  void forward(const TokenBatch& batch);
  const BlockActivations& kept(int layer) const;

  LayerContext context_;
  GptOptions options_;
  Arena arena_;
  std::vector<Block> blocks_;
  std::vector<Tensor> streams_;         // input of each block, then of the head: f32 [B, T, C]
  std::vector<BlockActivations> kept_;  // one per block, or a single shared one
  Workspace work_;
  Head::Activations head_;
};

}  // namespace shoal
