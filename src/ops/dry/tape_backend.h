// A backend that computes nothing and records the kernels that it is asked for, with their sizes: the
// planner prices them.
#pragma once

#include <initializer_list>
#include <vector>

#include "ops/dry/dry_backend.h"

namespace shoal {

struct Kernel {
  enum class Kind : std::uint8_t {
    product,    // of matrices: out [rows, columns] += over `depth`
    attention,  // forward or backward, causal, in tiles
    memory,     // bound by the bytes that it reads and writes
  };
  Kind kind = Kind::memory;
  double flops = 0;  // of products and attention, the latter without the masked half
  double bytes = 0;  // read and written once
  std::int64_t rows = 0, columns = 0, depth = 0;
};

class TapeBackend final : public DryBackend {
 public:
  const std::vector<Kernel>& kernels() const { return kernels_; }

  std::string_view name() const override { return "tape"; }
  void zero(const Tensor& x) override { memory({x}); }
  void convert(const Tensor& out, const Tensor& x) override { memory({out, x}); }
  void add(const Tensor& out, const Tensor& x) override { memory({out, out, x}); }
  void scale(const Tensor& out, const Tensor& x, float) override { memory({out, x}); }
  void sum(const Tensor&, const Tensor& x) override { memory({x}); }
  void sum_squares(const Tensor&, const Tensor& x) override { memory({x}); }
  void clip_scale(const Tensor&, const Tensor&, double, const Tensor& losses) override { memory({losses}); }

  void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor&) override {
    product(x.rows(), w.dim(0), w.dim(1), {y, x, w});
  }
  void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) override {
    product(dy.rows(), w.dim(1), w.dim(0), {dx, dy, w});
  }
  void linear_backward_weight(const Tensor& dw, const Tensor&, const Tensor& dy, const Tensor& x,
                              bool) override {
    product(dw.dim(0), dw.dim(1), dy.rows(), {dw, dw, dy, x});
  }

  void embedding_forward(const Tensor& out, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                         const Dropout&, const Tensor&) override {
    memory({out, out, out});
  }
  void embedding_backward(const Tensor&, const Tensor&, const Tensor& dout, const Tensor&, std::int64_t,
                          const Dropout&) override {
    memory({dout, dout, dout, dout, dout});
  }
  void layernorm_forward(const Tensor& y, const Tensor&, const Tensor&, const Tensor& x, const Tensor&,
                         const Tensor&) override {
    memory({y, x});
  }
  void layernorm_backward(const LayerNormBackward& args) override {
    memory({args.dx, args.dx, args.dy, args.x});
  }
  void residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                        const Dropout&) override {
    memory({out, residual, branch});
  }
  void residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout&) override {
    memory({dbranch, dout});
  }
  void residual_layernorm_forward(const ResidualLayerNorm& args) override {
    memory({args.out, args.residual, args.branch, args.y});
  }
  void layernorm_residual_backward(const LayerNormResidualBackward& args) override {
    memory({args.norm.dx, args.norm.dx, args.norm.dy, args.norm.x, args.dbranch});
  }
  void linear_gelu_forward(const Tensor& y, const Tensor& hidden, const Tensor& x, const Tensor& w,
                           const Tensor&, Gelu) override {
    product(x.rows(), w.dim(0), w.dim(1), {y, hidden, x, w});
  }
  void linear_gelu_backward(const Tensor& dhidden, const Tensor& dy, const Tensor& w, const Tensor& hidden,
                            Gelu, const Tensor&) override {
    product(dy.rows(), w.dim(1), w.dim(0), {dhidden, dy, w, hidden});
  }
  void gelu_forward(const Tensor& y, const Tensor& x, Gelu) override { memory({y, x}); }
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu) override {
    memory({dx, dy, x});
  }
  void attention_forward(const Tensor& out, const Tensor&, const Tensor& qkv, std::int64_t,
                         const Dropout&) override {
    attention(qkv, 2, {out, qkv});
  }
  void attention_backward(const AttentionBackward& args) override {
    attention(args.qkv, 5, {args.dqkv, args.dout, args.out, args.qkv});
  }
  void cross_entropy_stats(const CrossEntropy& args) override { memory({args.logits}); }
  void cross_entropy_backward(const CrossEntropy& args) override { memory({args.dlogits, args.logits}); }
  void cross_entropy_train(const CrossEntropy& args) override {
    memory({args.dlogits, args.logits, args.logits});
  }
  void adamw(const AdamWTensors& args, const AdamWSettings&) override {
    memory({args.weights, args.weights, args.m, args.m, args.v, args.v, args.mean, args.mean, args.grads,
            args.compute});
  }
  void take_largest(const Tensor& taken, const Tensor& x) override { memory({taken, x, x}); }
  void add_taken(const Tensor&, const Tensor& taken, float) override { memory({taken, taken, taken}); }
  void take_int4(const Tensor& packed, const Tensor& x) override { memory({packed, x, x}); }
  void add_int4(const Tensor& x, const Tensor& packed) override { memory({packed, x, x}); }
  void muon_direction(const Tensor& direction, const Tensor& momentum, const MuonSettings&) override {
    memory({direction, direction, momentum, momentum});
  }
  void muon_update(const MuonTensors& args, const MuonSettings&) override {
    memory({args.weights, args.weights, args.compute, args.direction});
  }
  void normalize(const Tensor& out, const Tensor& x, const Tensor&) override { memory({out, x}); }
  void transpose(const Tensor& out, const Tensor& x) override { memory({out, x}); }
  void scale_and_add(const Tensor& x, float, const Tensor& y, float) override { memory({x, x, y}); }
  void set_symmetric_rows(const SymmetricRows& args) override { memory({args.rows, args.rows, args.rows}); }

 private:
  static double bytes_of(std::initializer_list<Tensor> tensors);
  void memory(std::initializer_list<Tensor> tensors);
  void product(std::int64_t rows, std::int64_t columns, std::int64_t depth,
               std::initializer_list<Tensor> tensors);
  // `products`: of T x T x C, of which the causal half is computed.
  void attention(const Tensor& qkv, int products, std::initializer_list<Tensor> tensors);

  std::vector<Kernel> kernels_;
};

}  // namespace shoal
