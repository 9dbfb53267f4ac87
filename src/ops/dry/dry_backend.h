// A backend that computes nothing: its memory is reserved and never touched, its products are only counted.
// Engines and models run on it unchanged, to measure their memory and FLOPs: in `shoal train --dry-run`, and
// in tests.
#pragma once

#include "ops/kernels.h"

namespace shoal {

class DryBackend : public Backend {
 public:
  std::size_t allocated() const { return allocated_; }  // bytes, now
  std::size_t most_allocated() const { return most_; }  // bytes, the peak
  // FLOPs of matrix products and attention so far, two for each multiply-add; attention is counted with its
  // masked half, as a share of the peak counts it (flops_per_token), its backward pass as twice its forward
  // pass.
  double flops() const { return flops_; }

  std::string_view name() const override { return "dry"; }

  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) override;
  void copy_to_host(void* host, const Tensor& from) override;  // zeros
  void copy_from_host(const Tensor&, const void*) override {}
  void synchronize() override {}
  void copy_out(void*, const Tensor&) override {}

  void zero(const Tensor&) override {}
  void convert(const Tensor&, const Tensor&) override {}
  void add(const Tensor&, const Tensor&) override {}
  void scale(const Tensor&, const Tensor&, float) override {}
  void sum(const Tensor&, const Tensor&) override {}
  void sum_squares(const Tensor&, const Tensor&) override {}
  void sum_rows(const Tensor&, const Tensor&, std::int64_t) override {}
  void clip_scale(const Tensor&, const Tensor&, double, const Tensor&) override {}

  void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) override;
  void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) override;
  void linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                              bool overwrite) override;

  void embedding_forward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                         const Dropout&, const Tensor&) override {}
  void embedding_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                          const Dropout&) override {}

  void layernorm_forward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&) override {}
  void layernorm_backward(const LayerNormBackward&) override {}

  void residual_forward(const Tensor&, const Tensor&, const Tensor&, const Dropout&) override {}
  void residual_backward(const Tensor&, const Tensor&, const Dropout&) override {}

  void gelu_forward(const Tensor&, const Tensor&, Gelu) override {}
  void gelu_backward(const Tensor&, const Tensor&, const Tensor&, Gelu) override {}

  void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, std::int64_t first_head,
                         const Dropout& dropout) override;
  void attention_backward(const AttentionBackward& args) override;
  void attention_cached(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const CacheRows&) override {}

  void cross_entropy_stats(const CrossEntropy&) override {}
  void cross_entropy_rescale(const Tensor&, const Tensor&, const Tensor&, const Tensor&) override {}
  void cross_entropy_loss(const CrossEntropy&) override {}
  void cross_entropy_backward(const CrossEntropy&) override {}

  void fill_normal(const Tensor&, std::uint64_t, std::uint64_t, std::int64_t, double) override {}
  void fill(const Tensor&, float) override {}

  void adamw(const AdamWTensors&, const AdamWSettings&) override {}
  void take_largest(const Tensor&, const Tensor&) override {}
  void add_taken(const Tensor&, const Tensor&, float) override {}
  void take_int4(const Tensor&, const Tensor&) override {}
  void add_int4(const Tensor&, const Tensor&) override {}
  void muon_direction(const Tensor&, const Tensor&, const MuonSettings&) override {}
  void muon_update(const MuonTensors&, const MuonSettings&) override {}
  void normalize(const Tensor&, const Tensor&, const Tensor&) override {}
  void transpose(const Tensor&, const Tensor&) override {}
  void scale_and_add(const Tensor&, float, const Tensor&, float) override {}
  void set_symmetric_rows(const SymmetricRows&) override {}

 private:
  void count_product(std::int64_t rows, const Tensor& weights);
  void count_attention(const Tensor& qkv, int passes);

  std::size_t allocated_ = 0, most_ = 0;
  double flops_ = 0;
};

}  // namespace shoal
