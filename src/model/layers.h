// The three layers of a GPT-2, each the executor of one unit: the embedding, a transformer block, and the
// head with its loss. They keep what backward needs in activations that the caller gives, so that a
// micro-batch, a recompute or a pipeline stage is only another set of activations.
#pragma once

#include "comm/communicator.h"
#include "model/arena.h"
#include "model/unit_store.h"

namespace shoal {

// The sizes of one micro-batch on this rank.
struct BatchShape {
  std::int64_t batch = 1;      // sequences, B
  std::int64_t positions = 1;  // tokens of a sequence, T
  std::int64_t rows() const { return batch * positions; }
};

// Where a micro-batch stands in the run: what randomness is addressed by.
struct BatchAddress {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_sample = 0;  // of the global batch
  bool training = true;           // dropout acts
};

// What every layer is given.
struct LayerContext {
  Backend& backend;
  UnitStore& store;
  GptConfig config;
  DType compute = DType::f32;

  Dropout dropout(const BatchAddress& address, std::uint32_t site) const;
};

// What a block keeps of a micro-batch for its backward pass. x is the compute type.
struct BlockActivations {
  Tensor mean_1, rstd_1;  // f32 [R]
  Tensor norm_1;          // x [R, C]
  Tensor qkv;             // x [B, T, 3, H, D]
  Tensor lse;             // f32 [B, H, T]
  Tensor attention;       // x [B, T, H, D]
  Tensor middle;          // f32 [B, T, C]: the residual stream between attention and MLP
  Tensor mean_2, rstd_2;  // f32 [R]
  Tensor norm_2;          // x [R, C]
  Tensor hidden;          // x [R, 4C], before GELU
  Tensor activated;       // x [R, 4C], after GELU

  static BlockActivations take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute);
};

// Memory that no layer keeps: shared by all of them.
struct Workspace {
  Tensor branch;    // x [B, T, C]: a branch's output on its way into the residual stream, and its gradient
  Tensor d_norm;    // x [R, C]
  Tensor d_qkv;     // x [B, T, 3, H, D]
  Tensor d_hidden;  // x [R, 4C]
  Tensor d_stream;  // f32 [B, T, C]: the gradient of the residual stream

  static Workspace take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute);
};

class EmbeddingLayer {
 public:
  static constexpr int kUnit = 0;
  // out f32 [B, T, C]; tokens i32 [B, T]
  static void forward(const LayerContext& context, const BatchAddress& address, const Tensor& out,
                      const Tensor& tokens);
  static void backward(const LayerContext& context, const BatchAddress& address, const Tensor& dout,
                       const Tensor& tokens);
};

class Block {
 public:
  explicit Block(int layer) : layer_(layer) {}
  int unit() const { return layer_ + 1; }

  // x, out f32 [B, T, C]. With an empty out, only the activations are made (recompute).
  void forward(const LayerContext& context, const BatchAddress& address, const BlockActivations& keep,
               const Workspace& work, const Tensor& x, const Tensor& out) const;
  // work.d_stream holds the gradient of the output and receives that of the input.
  void backward(const LayerContext& context, const BatchAddress& address, const BlockActivations& keep,
                const Workspace& work, const Tensor& x) const;

 private:
  std::uint32_t site(int which) const { return static_cast<std::uint32_t>(1 + 3 * layer_ + which); }
  int layer_;
};

// Sums over the tokens of a batch, on the backend.
struct LossSums {
  Tensor loss;  // f64 [1], in nats
};

class Head {
 public:
  // Buffers of the head: the final norm and one chunk of logits, never all of them.
  struct Activations {
    Tensor mean, rstd;                            // f32 [R]
    Tensor norm, d_norm;                          // x [R, C]
    Tensor logits;                                // f32 [chunk, V]
    Tensor d_logits;                              // x [chunk, V]; the memory of logits when x is float32
    Tensor maximum, exp_sum, target_logit, loss;  // f32 [R]
    Tensor argmax;                                // i32 [R]
    static Activations take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute);
  };

  static int unit(const GptConfig& config) { return config.n_layer + 1; }

  // Adds the summed loss of targets i32 [R] to sums; keep.argmax holds the most likely classes afterwards.
  static void evaluate(const LayerContext& context, const Activations& keep, const Tensor& x,
                       const Tensor& targets, const LossSums& sums);
  // The same, and the gradients, all scaled by `scale`; work.d_stream receives that of x. Forward and
  // backward of a chunk of logits happen together, so that full logits never exist.
  static void train(const LayerContext& context, const Activations& keep, const Workspace& work,
                    const Tensor& x, const Tensor& targets, const LossSums& sums, float scale);
  // logits f32 [R, V padded] of x f32 [R, C], for generation.
  static void logits(const LayerContext& context, const Activations& keep, const Tensor& x,
                     const Tensor& logits);
};

}  // namespace shoal
