// The CUDA backend: cuBLASLt for matrix products, cuDNN for attention where it can, own kernels for the rest,
// all on one stream.
//
// Only copies to the host and synchronize() wait for the GPU. Only allocate(), and an op with larger sizes
// than before, allocate memory.
#pragma once

#include <functional>
#include <span>

#include "ops/cuda/cuda.h"
#include "ops/cuda/fused_attention.h"
#include "ops/cuda/matmul.h"
#include "ops/cuda/memory.h"
#include "ops/kernels.h"

namespace shoal::cuda {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options);
  std::string_view name() const override { return "cuda"; }
  Gpu gpu() const override;
  double measure_peak_flops(DType compute) override;

  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) override;
  void copy_to_host(void* host, const Tensor& from) override;
  void copy_from_host(const Tensor& to, const void* host) override;
  void synchronize() override;
  bool is_device_memory(const void* data) const override;
  bool can_capture() const override { return true; }
  void begin_capture() override;
  std::unique_ptr<CapturedGraph> end_capture() override;

  void* allocate_host(std::size_t bytes) override;
  void release_host(void* data, std::size_t bytes) override;
  void copy_in(const Tensor& to, const void* host) override;
  void copy_out(void* host, const Tensor& from) override;
  std::unique_ptr<Event> make_event() override;
  void record(Event& event, Stream stream) override;
  void wait(Stream stream, const Event& event) override;
  void synchronize(const Event& event) override;

  void zero(const Tensor& x) override;
  void zero_each(std::span<const Tensor> tensors) override;
  void convert(const Tensor& out, const Tensor& x) override;
  void add(const Tensor& out, const Tensor& x) override;
  void scale(const Tensor& out, const Tensor& x, float factor) override;
  void sum(const Tensor& total, const Tensor& x) override;
  void sum_squares(const Tensor& totals, const Tensor& x) override;
  void sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) override;
  void clip_scale(const Tensor& scale, const Tensor& squares, double max_norm, const Tensor& losses) override;

  void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) override;
  void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) override;
  void linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                              bool overwrite) override;

  void linear_gelu_forward(const Tensor& y, const Tensor& hidden, const Tensor& x, const Tensor& w,
                           const Tensor& bias, Gelu kind) override;
  void linear_gelu_backward(const Tensor& dhidden, const Tensor& dy, const Tensor& w, const Tensor& hidden,
                            Gelu kind, const Tensor& dbias) override;
  bool gelu_backward_sums() const override;

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
  bool norm_backward_sums() const override;

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
  // attention_forward without a library; lse may be empty.
  void own_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, std::int64_t first_head,
                             const Dropout& dropout);
  // The product with an epilogue when the types allow it, else by `parts`.
  void fused(const Product& product, const Matmul::Parts& parts, const Matmul::Parts& after = {});
  // A product with GELU or its slope by the library, by one own kernel, or in steps.
  void with_gelu(const Product& product, Gelu kind, const std::function<void()>& in_steps);
  // out f32 [C] += sums of x [R, C] over rows, rows in fixed blocks.
  void add_column_sums(const Tensor& out, const Tensor& x);
  void add_sums(const Tensor& totals, const Tensor& x, bool squares);
  cudaStream_t handle(Stream stream) const;
  // Calls `run` when a library may compute attention; whether it did. Throws when it had to and did not.
  bool by_library(const Tensor& qkv, const Dropout& dropout, bool aligned,
                  const std::function<bool(FusedAttention&, const AttentionSizes&)>& run);

  CudaOptions options_;
  CurrentGpu gpu_;
  GpuStream stream_, in_, out_;  // kernels, copies in, copies out
  Mailbox mailbox_;
  KernelScratch scratch_;
  Matmul matmul_;
  std::unique_ptr<FusedAttention> fused_attention_;  // null without the library
};

}  // namespace shoal::cuda
