// The three layers of GPT-2, each of which computes one unit: the embedding, a transformer block, and the
// head with its loss. The caller provides the memory for the activations that backward needs, so a
// micro-batch, a recompute or a pipeline stage is only another set of activations.
//
// In a tensor-parallel group a layer has H' of the heads, F' of the MLP's 4C hidden channels and V' classes.
// Every rank has the whole residual stream, or under sequence parallelism a range of its rows. R' is the
// number of a rank's rows, and a stream is s [B, T, C], or [1, R', C]. x and s are the types of
// ops/kernels.h.
#pragma once

#include <algorithm>
#include <array>
#include <functional>

#include "model/adapter.h"
#include "model/arena.h"
#include "model/layer_context.h"
#include "model/parameters.h"
#include "model/recompute.h"

namespace shoal {

Shape stream_shape(const GptConfig& config, const BatchShape& shape, const TensorRank& tensor);

// The activations of a block that its backward pass needs.
struct BlockActivations {
  Tensor mean_1, rstd_1;  // f32 [R']
  Tensor norm_1;          // x [R', C]; empty with Recompute::light
  Tensor qkv;             // x [B, T, 3, H', D]
  Tensor lse;             // f32 [B, H', T]
  Tensor attention;       // x [B, T, H', D]
  Tensor middle;          // a stream, between attention and MLP
  Tensor mean_2, rstd_2;  // f32 [R']
  Tensor norm_2;          // x [R', C]; empty with light
  Tensor hidden;          // x [R, F'], before GELU
  Tensor activated;       // x [R, F'], after GELU; empty with gelu or light

  static BlockActivations take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute,
                               DType stream, const TensorRank& tensor, Recompute recompute = Recompute::none);
};

// The memory for a norm's gradients: in `gradients`, or, where its unit is not trained, memory that nobody
// reads.
struct AffineGradients {
  Tensor weight, bias;
};

// Scratch memory that all layers share.
struct Workspace {
  Tensor branch;    // x [R, C]: a branch's output before it is added to the residual stream, and its gradient
  Tensor d_norm;    // x [R, C]
  Tensor d_qkv;     // x [B, T, 3, H', D]
  Tensor d_hidden;  // x [R, F']
  Tensor norm;      // x [R, C]: all ranks' rows of a norm, under sequence parallelism or with light
  Tensor stream;    // s [B, T, C]: the embedding's output, under sequence parallelism
  Tensor d_affine;  // f32 [2, C]: a norm's gradients that nobody reads, where units are not trained
  Tensor sums;      // f32 [C]: BranchGradient's
  AdapterWork adapter;

  AffineGradients affine(const UnitView& gradients, const AffineParameters& of) const;

  static Workspace take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute,
                        DType stream, const TensorRank& tensor, Recompute recompute = Recompute::none,
                        bool training = true);
};

// The sum residual + dropout(branch). A block leaves it to the next one, which computes it and its own norm
// in one op.
struct BranchSum {
  Tensor residual;  // a stream
  Tensor branch;    // a stream of x, in the workspace; empty where there is nothing to add
  Dropout dropout;
};

// The gradient of a branch. The backward op of the norm computes it too, from the stream's gradient.
struct BranchGradient {
  Tensor out;  // a stream of x; empty where it equals the stream's gradient
  Dropout dropout;
  Tensor sums;  // f32 [C]: of its columns, in the workspace; empty where the product's op makes them
};

class EmbeddingLayer {
 public:
  static constexpr int kUnit = 0;
  explicit EmbeddingLayer(const std::vector<UnitSpec>& units) : parameters_(units.at(kUnit)) {}

  // tokens i32 [B, T]. Writes the stream that enters the first block to `out`.
  void forward(const LayerContext& context, const BatchAddress& address, const Workspace& work,
               const Tensor& out, const Tensor& tokens) const;
  void backward(const LayerContext& context, const BatchAddress& address, const Workspace& work,
                const Tensor& d_stream, const Tensor& tokens) const;

 private:
  EmbeddingParameters parameters_;
};

class Block {
 public:
  // The attention of a forward pass: writes out x [B, T, H', D] from qkv x [B, T, 3, H', D].
  using Attention = std::function<void(const Tensor& out, const Tensor& qkv)>;

  Block(const std::vector<UnitSpec>& units, const GptConfig& config, int layer)
      : layer_(layer),
        parameters_(units.at(static_cast<std::size_t>(unit())), config.bias),
        products_{parameters_.attn_c_attn.weight.range(), parameters_.attn_c_proj.weight.range(),
                  parameters_.mlp_c_fc.weight.range(), parameters_.mlp_c_proj.weight.range()},
        adapter_(units, config, layer) {
    std::ranges::sort(products_, {}, &ElementRange::begin);
  }
  int unit() const { return layer_ + 1; }

  // Reads the stream x, or first computes it as the sum `before`, and returns the sum that is the block's
  // output. `attention`, where given, replaces the causal attention over the micro-batch; it has no backward
  // pass.
  BranchSum forward(const LayerContext& context, const BatchAddress& address, const BlockActivations& kept,
                    const Workspace& work, const Tensor& x, const BranchSum& before = {},
                    const Attention& attention = {}) const;
  // Computes the activations of forward again.
  void recompute(const LayerContext& context, const BatchAddress& address, const BlockActivations& kept,
                 const Workspace& work, const Tensor& x) const;
  // d_stream, a stream, holds the gradient of the output and receives that of the input. `entered` is as much
  // of entry() as has been computed from it. `next` is computed from the result.
  void backward(const LayerContext& context, const BatchAddress& address, const BlockActivations& kept,
                const Workspace& work, const Tensor& x, const Tensor& d_stream,
                const BranchGradient& entered = {}, const BranchGradient& next = {}) const;
  // The gradient that backward starts from: of the MLP's branch, in the workspace, with the shape of
  // `stream`.
  BranchGradient entry(const LayerContext& context, const BatchAddress& address, const Workspace& work,
                       const Tensor& stream) const {
    return branch_gradient(context, address, work, stream, 2);
  }

 private:
  void make_activations(const LayerContext& context, const BatchAddress& address,
                        const BlockActivations& keep, const Workspace& work, const UnitView& w,
                        const Adapter::Pass& adapters, const Tensor& x, const BranchSum& before,
                        const Attention& attention) const;
  BranchGradient branch_gradient(const LayerContext& context, const BatchAddress& address,
                                 const Workspace& work, const Tensor& stream, int which) const;
  std::uint32_t site(int which) const { return static_cast<std::uint32_t>(1 + 3 * layer_ + which); }
  int layer_;
  BlockParameters parameters_;
  std::array<ElementRange, 4> products_;  // of the matrices, in the unit's buffer
  Adapter adapter_;
};

class Head {
 public:
  // The final norm and one chunk of the logits.
  struct Activations {
    Tensor mean, rstd;                            // f32 [R']
    Tensor norm;                                  // x [R', C]
    Tensor logits;                                // [chunk, V' padded], of the type in LogitsPlan
    Tensor d_logits;                              // x [chunk, V']; shares the memory of logits of this type
    Tensor maximum, exp_sum, target_logit, loss;  // f32 [R]
    Tensor argmax;                                // i32 [R]
    Tensor own_maximum;                           // f32 [R], of this rank's classes; in a tensor group only
    static Activations take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute,
                            const LogitsPlan& plan, const TensorRank& tensor);
  };

  Head(const std::vector<UnitSpec>& units, const GptConfig& config)
      : unit_(config.n_layer + 1),
        tied_(config.tied),
        parameters_(units.at(static_cast<std::size_t>(unit_)), config.bias, tied_),
        classes_(tied_ ? EmbeddingParameters(units.at(EmbeddingLayer::kUnit)).wte : parameters_.lm_head) {}

  // Adds the summed loss of targets i32 [R] to loss f64 [1], in nats, and writes the most likely classes to
  // keep.argmax. Both are equal on all ranks of a tensor group.
  void evaluate(const LayerContext& context, const Activations& keep, const Workspace& work, const Tensor& x,
                const Tensor& targets, const Tensor& loss) const;
  // Adds the loss and the gradients, which are scaled by `scale`. d_stream receives the gradient of x, and
  // `next` is computed from it. The forward and backward passes of a chunk of logits happen together, so full
  // logits never exist. keep.argmax covers only this rank's classes.
  void train(const LayerContext& context, const Activations& keep, const Workspace& work, const Tensor& x,
             const Tensor& d_stream, const Tensor& targets, const Tensor& loss, float scale,
             const BranchGradient& next = {}) const;
  // Writes this rank's logits f32 [R, V' padded] of x s [R, C]. For generation, without sequence
  // parallelism.
  void logits(const LayerContext& context, const Activations& keep, const Tensor& x,
              const Tensor& logits) const;

 private:
  struct Weights {
    UnitView own;
    Tensor classes;  // x [V' padded, C]
  };
  Weights weights(UnitStore& store) const;
  void release(UnitStore& store) const;
  Tensor final_norm(const LayerContext& context, const Activations& keep, const Workspace& work,
                    const UnitView& w, const Tensor& x) const;

  int unit_;
  bool tied_;
  HeadParameters parameters_;
  ParameterSlice classes_;  // in the embedding's unit where they are tied
};

}  // namespace shoal
