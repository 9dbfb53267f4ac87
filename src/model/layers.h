// The three layers of a GPT-2, each the executor of one unit: the embedding, a transformer block, and the
// head with its loss. They keep what backward needs in activations that the caller gives, so that a
// micro-batch, a recompute or a pipeline stage is only another set of activations.
//
// In a tensor-parallel group a layer has H' of the heads, F' of the MLP's 4C hidden channels and V' classes;
// the residual stream is whole on every rank, or under sequence parallelism a range of its rows. R' is the
// rows that a rank has of the stream, and a stream is f32 [B, T, C], or [1, R', C].
#pragma once

#include "model/arena.h"
#include "model/recompute.h"
#include "model/tensor_group.h"
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
  const std::uint32_t* now = nullptr;  // as Dropout's
  std::int64_t first_sample = 0;       // of the global batch
  bool training = true;                // dropout acts
};

// What every layer is given.
struct LayerContext {
  Backend& backend;
  UnitStore& store;
  GptConfig config;
  DType compute = DType::f32;
  TensorGroup tensor = {};

  Dropout dropout(const BatchAddress& address, std::uint32_t site) const;
  // The same, for the rows of a stream on this rank.
  Dropout dropout(const BatchAddress& address, std::uint32_t site, const Tensor& stream) const;
};

Shape stream_shape(const GptConfig& config, const BatchShape& shape, const TensorPlace& place);

// What a block keeps of a micro-batch for its backward pass. x is the compute type.
struct BlockActivations {
  Tensor mean_1, rstd_1;  // f32 [R']
  Tensor norm_1;          // x [R', C]; norms not with light
  Tensor qkv;             // x [B, T, 3, H', D]
  Tensor lse;             // f32 [B, H', T]
  Tensor attention;       // x [B, T, H', D]
  Tensor middle;          // a stream: between attention and MLP
  Tensor mean_2, rstd_2;  // f32 [R']
  Tensor norm_2;          // x [R', C]
  Tensor hidden;          // x [R, F'], before GELU
  Tensor activated;       // x [R, F'], after GELU; not with gelu or light

  static BlockActivations take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute,
                               const TensorPlace& place, Recompute recompute = Recompute::none);
};

// Memory that no layer keeps: shared by all of them.
struct Workspace {
  Tensor branch;    // x [R, C]: a branch's output on its way into the residual stream, and its gradient
  Tensor d_norm;    // x [R, C]
  Tensor d_qkv;     // x [B, T, 3, H', D]
  Tensor d_hidden;  // x [R, F']
  Tensor norm;      // x [R, C]: under sequence parallelism, rows of all ranks; and where norms are not kept
  Tensor stream;    // f32 [B, T, C]: of the embedding; under sequence parallelism only

  static Workspace take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute,
                        const TensorPlace& place, Recompute recompute = Recompute::none);
};

// A branch on its way into the residual stream, which a block leaves to whoever is behind it: to the next
// block adding it and the norm are one op.
struct BranchSum {
  Tensor residual;  // a stream
  Tensor branch;    // a stream of x, in the workspace; empty where nothing is to be added
  Dropout dropout;
};

// Where the gradient of a branch goes, which is made of the stream's: by the backward pass of the norm that
// comes before it there, in one op.
struct BranchGradient {
  Tensor out;  // a stream of x; empty where the stream's own gradient serves
  Dropout dropout;
};

class EmbeddingLayer {
 public:
  static constexpr int kUnit = 0;
  // out a stream; tokens i32 [B, T]
  static void forward(const LayerContext& context, const BatchAddress& address, const Workspace& work,
                      const Tensor& out, const Tensor& tokens);
  static void backward(const LayerContext& context, const BatchAddress& address, const Workspace& work,
                       const Tensor& d_stream, const Tensor& tokens);
};

class Block {
 public:
  explicit Block(int layer) : layer_(layer) {}
  int unit() const { return layer_ + 1; }

  // x, a stream, which is made here where there is something to be added `before`; the result makes the next
  // one. Without `whole`, only the activations are made (recompute).
  BranchSum forward(const LayerContext& context, const BatchAddress& address, const BlockActivations& kept,
                    const Workspace& work, const Tensor& x, const BranchSum& before = {},
                    bool whole = true) const;
  // d_stream, a stream, holds the gradient of the output and receives that of the input. With `entered`, that
  // of entry() has been made of it already. `next` is made of the result.
  void backward(const LayerContext& context, const BatchAddress& address, const BlockActivations& kept,
                const Workspace& work, const Tensor& x, const Tensor& d_stream, bool entered = false,
                const BranchGradient& next = {}) const;
  // The branch whose gradient backward begins with, in the workspace; of a stream of this shape.
  BranchGradient entry(const LayerContext& context, const BatchAddress& address, const Workspace& work,
                       const Tensor& stream) const {
    return branch_gradient(context, address, work, stream, 2);
  }

 private:
  BranchGradient branch_gradient(const LayerContext& context, const BatchAddress& address,
                                 const Workspace& work, const Tensor& stream, int which) const;
  std::uint32_t site(int which) const { return static_cast<std::uint32_t>(1 + 3 * layer_ + which); }
  int layer_;
};

class Head {
 public:
  // Buffers of the head: the final norm and one chunk of logits, never all of them.
  struct Activations {
    Tensor mean, rstd;                            // f32 [R']
    Tensor norm;                                  // x [R', C]
    Tensor logits;                                // as planned [chunk, V' padded]
    Tensor d_logits;                              // x [chunk, V']; the memory of logits of the same type
    Tensor maximum, exp_sum, target_logit, loss;  // f32 [R]
    Tensor argmax;                                // i32 [R]
    Tensor own_maximum;                           // f32 [R], of this rank's classes; in a tensor group only
    static Activations take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute,
                            const LogitsPlan& plan, const TensorPlace& place);
  };

  static int unit(const GptConfig& config) { return config.n_layer + 1; }

  // Adds the summed loss of targets i32 [R] to loss f64 [1], in nats; keep.argmax holds the most likely
  // classes afterwards. The same on every rank of a tensor group.
  static void evaluate(const LayerContext& context, const Activations& keep, const Workspace& work,
                       const Tensor& x, const Tensor& targets, const Tensor& loss);
  // The same, and the gradients, all scaled by `scale`; d_stream receives that of x, of which `next` is made.
  // Forward and backward of a chunk of logits happen together, so that full logits never exist. keep.argmax
  // is of this rank's classes.
  static void train(const LayerContext& context, const Activations& keep, const Workspace& work,
                    const Tensor& x, const Tensor& d_stream, const Tensor& targets, const Tensor& loss,
                    float scale, const BranchGradient& next = {});
  // logits f32 [R, V padded] of x f32 [R, C], for generation, which knows no tensor group.
  static void logits(const LayerContext& context, const Activations& keep, const Tensor& x,
                     const Tensor& logits);
};

}  // namespace shoal
