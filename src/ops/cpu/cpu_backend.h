// The CPU backend: SIMD and a team of threads.
#pragma once

#include "core/thread_team.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/growing_memory.h"
#include "ops/cpu/packed_product.h"
#include "ops/kernels.h"
#include "ops/with_type.h"

namespace shoal::cpu {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, CpuLevel level);
  std::string_view name() const override { return "cpu"; }
  double measure_peak_flops(DType compute) override;
  double measure_read_bandwidth() override;

  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) override;
  void copy_to_host(void* host, const Tensor& from) override;
  void copy_from_host(const Tensor& to, const void* host) override;
  void synchronize() override { team_.finish(); }

  std::unique_ptr<Event> make_event() override { return std::make_unique<LaterEvent>(); }
  void wait(Stream, const Event& event) override { team_.finish(static_cast<const LaterEvent&>(event).work); }
  void synchronize(const Event& event) override { wait(Stream::kernels, event); }

  void zero(const Tensor& x) override;
  void convert(const Tensor& out, const Tensor& x) override;
  void add(const Tensor& out, const Tensor& x) override;
  void to_int8(const Tensor& out, const Tensor& w) override;
  bool has_int8() const override { return true; }
  void scale(const Tensor& out, const Tensor& x, float factor) override;
  void sum(const Tensor& total, const Tensor& x) override;
  void sum_squares(const Tensor& totals, const Tensor& x) override;
  void sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) override;
  void clip_scale(const Tensor& scale, const Tensor& squares, double max_norm, const Tensor& losses) override;

  void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) override;
  void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) override;
  void linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                              bool overwrite) override;

  void embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
                         std::int64_t first_class, const Dropout& dropout, const Tensor& positions) override;
  void embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dout, const Tensor& tokens,
                          std::int64_t first_class, const Dropout& dropout) override;

  void layernorm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                         const Tensor& gamma, const Tensor& beta) override;
  void layernorm_backward(const LayerNormBackward& args) override;

  void residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                        const Dropout& dropout) override;
  void residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout& dropout) override;
  void residual_layernorm_forward(const ResidualLayerNorm& args) override;
  void layernorm_residual_backward(const LayerNormResidualBackward& args) override;
  bool norm_backward_sums() const override { return true; }

  void gelu_forward(const Tensor& y, const Tensor& x, Gelu kind) override;
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind) override;

  void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, std::int64_t first_head,
                         const Dropout& dropout) override;
  void attention_backward(const AttentionBackward& args) override;
  void attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                        const CacheRows& rows) override;

  void cross_entropy_stats(const CrossEntropy& args) override;
  void cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                             const Tensor& maximum) override;
  void cross_entropy_loss(const CrossEntropy& args) override;
  void cross_entropy_backward(const CrossEntropy& args) override;
  void cross_entropy_train(const CrossEntropy& args) override;

  void fill_normal(const Tensor& out, std::uint64_t seed, std::uint64_t name, std::int64_t first,
                   double stddev) override;
  void fill(const Tensor& out, float value) override;

  void adamw(const AdamWTensors& args, const AdamWSettings& settings) override;
  void adamw_later(const AdamWTensors& args, const AdamWSettings& settings, Event& done) override;
  void take_largest(const Tensor& taken, const Tensor& x) override;
  void add_taken(const Tensor& x, const Tensor& taken, float factor) override;
  void take_int4(const Tensor& packed, const Tensor& x) override;
  void add_int4(const Tensor& x, const Tensor& packed) override;
  void muon_direction(const Tensor& direction, const Tensor& momentum, const MuonSettings& settings) override;
  void muon_update(const MuonTensors& args, const MuonSettings& settings) override;
  void normalize(const Tensor& out, const Tensor& x, const Tensor& squares) override;
  void transpose(const Tensor& out, const Tensor& x) override;
  void scale_and_add(const Tensor& x, float factor, const Tensor& y, float y_factor) override;
  void set_symmetric_rows(const SymmetricRows& args) override;

 private:
  struct LaterEvent final : Event {
    std::uint32_t work = 0;  // the team's number of it
  };
  // out g [columns] += the sums of x's columns, rows in fixed blocks.
  void add_column_sums(const Tensor& out, const Tensor& x);
  // Weights in 8 bits as a matrix of `type`, until the next call.
  Tensor widened(const Tensor& packed, DType type);
  float* scratch(std::int64_t floats) { return scratch_.take<float>(floats); }

  CpuLevel level_;
  ThreadTeam team_;
  PackedProduct product_;
  GrowingMemory scratch_, widened_;
};

// Floats of scratch memory for attention's backward pass, and for sums over rows.
std::int64_t attention_scratch(int threads, std::int64_t positions, std::int64_t channels, DType type,
                               CpuLevel level);
std::int64_t column_sum_scratch(std::int64_t rows, std::int64_t columns);

}  // namespace shoal::cpu
