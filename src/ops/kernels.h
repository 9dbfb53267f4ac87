// Every kernel of the model, on one page. `reference` (plain loops in double, the oracle), `cpu` and `cuda`
// implement it, and the whole model runs on each of them.
//
// Shapes are row-major. R is rows (tokens), B sequences, T positions, C channels, H heads, D channels of a
// head, V classes. "x" in a type column means the compute type, float32 or bfloat16; "s" that of the residual
// stream and of its gradient, float32 or x; "g" that of gradients of parameters, float32 or x. Statistics and
// losses are float32 always. `+=` marks outputs that are added to. Tensors are contiguous, inputs and outputs
// do not overlap unless said so, and nothing is checked here: the model checks its sizes once, when it is
// built. Results do not depend on the number of threads.
//
// w of linear_forward and linear_gelu_forward, and wte of embedding_forward, may be in 8 bits (int8.h) where
// has_int8() is true.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "ops/device.h"
#include "ops/dropout.h"

namespace shoal {

enum class Gelu : std::uint8_t { tanh, erf };

// The scalars of an update that change every step.
struct AdamWScalars {
  float lr;
  float correction1, correction2;  // 1 - beta1^t, 1 - beta2^t
  std::int32_t commit;             // with a mean: this step is the last of its window
};

struct AdamWSettings {
  const AdamWScalars* scalars = nullptr;  // in the backend's memory
  // One float in the backend's memory that every gradient is multiplied by; null: 1. NaN: weights, m, v and
  // mean do not change.
  const float* grad_scale = nullptr;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float weight_decay = 0;  // decoupled: w *= 1 - lr * weight_decay
  bool l2 = false;         // g += weight_decay * w, after scaling, instead of the decoupled decay
  float share = 1;         // with a mean: of this gradient in it
};

struct MuonSettings {
  const float* lr = nullptr;          // in the backend's memory
  const float* grad_scale = nullptr;  // as AdamWSettings's: NaN: momentum and weights do not change
  float momentum = 0.95f;
  bool nesterov = true;
  float weight_decay = 0;  // decoupled: w *= 1 - lr * weight_decay
};

inline constexpr std::int64_t kSparseBlock = 1024;
inline constexpr std::int64_t kInt4Words = 1 + kSparseBlock / 8;  // of a packed block: its scale, and levels

inline constexpr double kMuonEps = 1e-7;  // the least norm that a matrix is divided by

// --- arguments of ops with many tensors; the ops below say what each one is

struct LayerNormBackward {
  Tensor dx = {}, dgamma = {}, dbeta = {};
  Tensor dy = {}, x = {}, gamma = {}, mean = {}, rstd = {};
};

struct ResidualLayerNorm {
  Tensor out = {}, y = {}, mean = {}, rstd = {};
  Tensor residual = {}, branch = {};
  Dropout dropout = {};
  Tensor gamma = {}, beta = {};
};

struct LayerNormResidualBackward {
  LayerNormBackward norm;
  bool overwrite = false;  // dx is set, not added to
  Tensor dbranch = {};
  Dropout dropout = {};
  Tensor sums = {};
};

struct AttentionBackward {
  Tensor dqkv = {};
  Tensor dout = {}, out = {}, lse = {}, qkv = {};
  std::int64_t first_head = 0;
  Dropout dropout = {};
};

struct CrossEntropy {
  Tensor logits = {}, targets = {};
  std::int64_t first_class = 0, valid = 0;
  Tensor maximum = {}, exp_sum = {}, target_logit = {}, argmax = {};
  Tensor losses = {};
  Tensor dlogits = {};
  float scale = 1;
};

struct AdamWTensors {
  Tensor weights = {}, compute = {}, m = {}, v = {}, mean = {}, grads = {};
};

struct MuonTensors {
  Tensor weights = {}, compute = {}, direction = {};
};

struct SymmetricRows {
  Tensor out = {};
  std::int64_t first = 0;
  Tensor rows = {};
  float factor = 1;
  Tensor base = {};
  float base_factor = 1;
};

// The most rows of a product that takes little longer than one row: it waits for the weights. The bits of a
// row of linear_forward and linear_gelu_forward are the same for each number of rows up to this.
inline constexpr std::int64_t kFewRows = 8;

// The rows that generation adds to the caches of its texts. Rows of one text follow one another, in order of
// position and without gaps.
struct CacheRows {
  // i32 [R], read by the device, so that a graph can be replayed for others
  Tensor texts = {}, positions = {};
  bool prompt = false;  // the positions are 0, 1, ... of one text
};

class Backend : public Device {
 public:
  // --- element-wise and reductions
  virtual void zero(const Tensor& x) = 0;
  virtual void zero_each(std::span<const Tensor> tensors) {
    for (const Tensor& x : tensors) zero(x);
  }
  virtual void convert(const Tensor& out,
                       const Tensor& x) = 0;                 // between float32 and bfloat16, or a plain copy
  virtual void add(const Tensor& out, const Tensor& x) = 0;  // out, x f32 or bf16 [n]: out += x
  // out i8 [N, K + 4] = w x [N, K] in 8 bits; may be the memory of w. A row with a NaN or an infinity becomes
  // NaN.
  virtual void to_int8(const Tensor&, const Tensor&) {}
  // Whether to_int8 and products of what it makes are there.
  virtual bool has_int8() const { return false; }
  // out f32 [n] = factor * x f32 [n]; may be x itself.
  virtual void scale(const Tensor& out, const Tensor& x, float factor) = 0;
  // total f64 [1] += sum of x f32 [n], in an order fixed by n alone.
  virtual void sum(const Tensor& total, const Tensor& x) = 0;
  // totals f64 [m] += sums of squares of the m equal pieces of x g [m * k], each in an order fixed by k
  // alone; a subnormal number may count as 0.
  virtual void sum_squares(const Tensor& totals, const Tensor& x) = 0;
  // total f64 [1] += the first n numbers of each row of x f64 [P, S], one row after the other, in an order
  // that does not depend on how they are cut into rows, nor on zeros behind the last.
  virtual void sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) = 0;
  // scale f32 [1] = min(1, max_norm / (sqrt(squares) + 1e-6)), as PyTorch's clip_grad_norm_; squares f64 [1].
  // max_norm 0 means no clipping. NaN where the norm, or one of losses f64 [n] (may be empty), is not finite.
  virtual void clip_scale(const Tensor& scale, const Tensor& squares, double max_norm,
                          const Tensor& losses) = 0;

  // --- matrix products
  // y x or f32 [R, N] = x x [R, K] . w x [N, K]^T + bias x [N] (bias may be empty)
  virtual void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) = 0;
  // dx x or f32 [R, K] = dy x [R, N] . w x [N, K]
  virtual void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) = 0;
  // dw g [N, K] += dy x [R, N]^T . x x [R, K], or = where `overwrite`;  dbias g [N] += column sums of dy
  // (dbias may be empty)
  virtual void linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy,
                                      const Tensor& x, bool overwrite) = 0;
  // hidden x [R, N] = x x [R, K] . w x [N, K]^T + bias x [N] (bias may be empty);  y x [R, N] = GELU(hidden),
  // or GELU of the sum before it is rounded to hidden
  virtual void linear_gelu_forward(const Tensor& y, const Tensor& hidden, const Tensor& x, const Tensor& w,
                                   const Tensor& bias, Gelu kind) {
    linear_forward(hidden, x, w, bias);
    gelu_forward(y, hidden, kind);
  }
  // dhidden x [R, N] = GELU'(hidden x [R, N]) * (dy x [R, M] . w x [M, N]);  dbias g [N] += column sums of
  // dhidden, before or after it is rounded (dbias may be empty, and is where gelu_backward_sums() is false)
  virtual void linear_gelu_backward(const Tensor& dhidden, const Tensor& dy, const Tensor& w,
                                    const Tensor& hidden, Gelu kind, const Tensor&) {
    linear_backward_input(dhidden, dy, w);
    gelu_backward(dhidden, dhidden, hidden, kind);
  }
  // Whether linear_gelu_backward has the column sums at less cost than linear_backward_weight.
  virtual bool gelu_backward_sums() const { return false; }

  // --- embedding. tokens i32 [B, T]; out s [B, T, C] = wte[token] + wpe[position], then dropout; positions
  // i32 [B, T], or those of dropout's window where empty. wte x [V, C] holds the classes from first_class on;
  // a token outside of them gives a row of zeros (vocabulary sharding: the sum over shards is exact).
  virtual void embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte,
                                 const Tensor& wpe, std::int64_t first_class, const Dropout& dropout,
                                 const Tensor& positions = {}) = 0;
  // dwte g [V, C] +=, dwpe g [P, C] += of all tokens; dout s [B, T, C]
  virtual void embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dout,
                                  const Tensor& tokens, std::int64_t first_class, const Dropout& dropout) = 0;

  // --- layer norm, eps 1e-5. y x [R, C]; mean, rstd f32 [R]; x s [R, C]; gamma, beta x [C] (beta may be
  // empty)
  virtual void layernorm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                 const Tensor& gamma, const Tensor& beta) = 0;
  // dx s [R, C] += (the residual path's gradient is already there); dgamma, dbeta g [C] +=; dy x [R, C]
  virtual void layernorm_backward(const LayerNormBackward& args) = 0;

  // --- residual stream. out s [B, T, C] = residual s + dropout(branch x); out may be residual itself.
  virtual void residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                                const Dropout& dropout) = 0;
  // dbranch x [B, T, C] = dropout'(dout s)
  virtual void residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout& dropout) = 0;

  // --- residual stream and layer norm in one op, with the bits of the two ops
  // residual_forward, then layernorm_forward of out.
  virtual void residual_layernorm_forward(const ResidualLayerNorm& args) {
    residual_forward(args.out, args.residual, args.branch, args.dropout);
    layernorm_forward(args.y, args.mean, args.rstd, args.out, args.gamma, args.beta);
  }
  // layernorm_backward into dx s [B, T, C], then residual_backward of dx unless dbranch is empty. sums f32
  // [C] = column sums of dx (may be empty, and is where norm_backward_sums() is false).
  virtual void layernorm_residual_backward(const LayerNormResidualBackward& args) {
    if (args.overwrite) zero(args.norm.dx);
    layernorm_backward(args.norm);
    if (args.dbranch) residual_backward(args.dbranch, args.norm.dx, args.dropout);
  }
  // Whether layernorm_residual_backward has the column sums at less cost than linear_backward_weight.
  virtual bool norm_backward_sums() const { return false; }

  // --- GELU. y, x, dx, dy x [n]; dx may be dy.
  virtual void gelu_forward(const Tensor& y, const Tensor& x, Gelu kind) = 0;
  virtual void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind) = 0;

  // --- causal self-attention, scale 1/sqrt(D), computed in tiles with a running maximum (FlashAttention-2,
  // Dao 2023). out x [B, T, H, D]; lse f32 [B, H, T] = log of the sum of exponentials; qkv x [B, T, 3, H, D].
  // Dropout acts on the probabilities; head h here is head first_head + h of the model.
  virtual void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                 std::int64_t first_head, const Dropout& dropout) = 0;
  // dqkv x [B, T, 3, H, D]; dout x [B, T, H, D]
  virtual void attention_backward(const AttentionBackward& args) = 0;
  // Texts with a cache, for generation: out x [R, H, D] are the answers at `rows`, whose q, k, v are qkv
  // x [R, 3, H, D]; keys and values x [texts, P, H, D] hold the positions before, and receive those of
  // `rows`.
  virtual void attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values,
                                const Tensor& qkv, const CacheRows& rows) = 0;

  // --- softmax cross-entropy over a chunk of rows and a range of classes, in two passes with room for a
  // reduction over vocabulary shards between them. logits f32 (cuda: or x) [R, V] are the classes from
  // first_class on; the first `valid` columns count, the rest is padding. targets i32 [R]; a negative target
  // is ignored (loss 0, no gradient).
  //
  // Sets maximum f32 [R]; exp_sum f32 [R], of exp(logit - maximum); target_logit f32 [R], 0 when the target
  // is outside the range; argmax i32 [R], a global class, the first among equals.
  virtual void cross_entropy_stats(const CrossEntropy& args) = 0;
  // exp_sum, of exp(logit - own), becomes that of exp(logit - maximum); argmax stays where own is the maximum
  // and is INT32_MAX elsewhere. own, maximum f32 [R].
  virtual void cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                                     const Tensor& maximum) = 0;
  // losses f32 [R] = maximum + log(exp_sum) - target_logit, of the statistics over all classes.
  virtual void cross_entropy_loss(const CrossEntropy& args) = 0;
  // dlogits x [R, V] = (softmax - one-hot) * scale; may be the memory of logits when the types are the same.
  virtual void cross_entropy_backward(const CrossEntropy& args) = 0;
  // Statistics, loss and gradient in one op, with the bits of the three ops; the range is all classes. The
  // logits may be overwritten.
  virtual void cross_entropy_train(const CrossEntropy& args) {
    cross_entropy_stats(args);
    cross_entropy_loss(args);
    cross_entropy_backward(args);
  }

  // --- initial values. Element e = first + i of the parameter, out f32 [n] at i, is stddev times normal
  // deviate e % 2 of the Philox block (seed; e / 2, name).
  virtual void fill_normal(const Tensor& out, std::uint64_t seed, std::uint64_t name, std::int64_t first,
                           double stddev) = 0;
  virtual void fill(const Tensor& out, float value) = 0;

  // --- AdamW (Loshchilov and Hutter 2019) in PyTorch's order, over flat buffers: weights, m, v f32 [n] are
  // updated from grads g [n]; compute, where not empty, is the bfloat16 copy of the weights that the
  // products use.
  // With mean f32 [n], AccumAdamW: it sums share * g, weights move by moments that are mixed with g for this
  // step alone, and only a step that commits mixes m and v with the mean and zeroes it. m and v are kept as
  // AdamW keeps them and decayed where they are used, so a window of one step is AdamW bit for bit.
  virtual void adamw(const AdamWTensors& args, const AdamWSettings& settings) = 0;
  // The same, but a backend may go on with it while kernels run that were asked for later, until `done`
  // completes. What `settings` points to may change when those run. By default there is nothing to wait for.
  virtual void adamw_later(const AdamWTensors& args, const AdamWSettings& settings, Event& /*done*/) {
    adamw(args, settings);
  }

  // --- sparse sums, for exchanges between distant workers. Numbers of a block of kSparseBlock are taken by
  // their magnitude, the first among equals first: position << 16 | bits of the bfloat16.
  // taken i32 [B, K] = the K largest numbers of each block of x f32 [B * kSparseBlock], rounded; x keeps the
  // rest, what was lost in rounding too.
  virtual void take_largest(const Tensor& taken, const Tensor& x) = 0;
  // x f32 [B * kSparseBlock] += factor * taken i32 [B, K]
  virtual void add_taken(const Tensor& x, const Tensor& taken, float factor) = 0;
  // packed i32 [B, kInt4Words] = x f32 [B * kSparseBlock] in steps of a 7th of each block's largest magnitude
  // (sparse.h has the format); x keeps the rest. A block with a NaN or an infinity becomes NaN.
  virtual void take_int4(const Tensor& packed, const Tensor& x) = 0;
  // x f32 [B * kSparseBlock] += packed i32 [B, kInt4Words]
  virtual void add_int4(const Tensor& x, const Tensor& packed) = 0;

  // --- Muon (Jordan et al. 2024), whose update of a matrix is its momentum made orthogonal
  // direction f32 [n] holds the gradient, which is scaled to g. momentum f32 [n] mixes with it, beta *
  // momentum + (1 - beta) * g, and direction becomes that, or with Nesterov's momentum one more such mix.
  virtual void muon_direction(const Tensor& direction, const Tensor& momentum,
                              const MuonSettings& settings) = 0;
  // weights f32 [n] = weights * (1 - lr * weight_decay) - lr * direction f32 [n]; compute as adamw's.
  virtual void muon_update(const MuonTensors& args, const MuonSettings& settings) = 0;
  // out x [n] = x f32 [n] / max(sqrt(squares), kMuonEps); squares f64 [1]; out may be x.
  virtual void normalize(const Tensor& out, const Tensor& x, const Tensor& squares) = 0;
  // out [C, R] = x [R, C]^T, each float32 or bfloat16
  virtual void transpose(const Tensor& out, const Tensor& x) = 0;
  // x x [n] = factor * x + y_factor * y f32 [n]
  virtual void scale_and_add(const Tensor& x, float factor, const Tensor& y, float y_factor = 1) = 0;
  // Sets R rows of a symmetric matrix out x [M, M], from row `first` on, up to the diagonal, and the columns
  // that mirror them: factor * rows f32 [R, first + R] + base_factor * base x [M, M] (base may be empty).
  virtual void set_symmetric_rows(const SymmetricRows& args) = 0;
};

// The type of logits on a backend, and how many of them the head computes at a time.
struct LogitsPlan {
  DType type = DType::f32;
  // About so many. Each chunk reads and writes the embedding's gradient once, which should cost little beside
  // the products.
  std::int64_t elements = std::int64_t{32} << 20;
  bool operator==(const LogitsPlan&) const = default;
};

}  // namespace shoal
