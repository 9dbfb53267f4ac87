#include <algorithm>
#include <cmath>

#include "optim/optimizer.h"

namespace shoal {
namespace {

class Muon final : public Optimizer {
 public:
  explicit Muon(const MuonConfig& config) : config_(config), adamw_(make_optimizer(config.adamw)) {}

  std::vector<std::string_view> state_names() const override { return adamw_->state_names(); }
  std::string_view state_text() const override {
    return "momentum, and a second moment of what AdamW updates";
  }
  std::int64_t scalar_count() const override { return adamw_->scalar_count() + 1; }

  void begin_step(Backend& backend, const Tensor& scalars, double lr, std::int64_t number) override {
    const std::int64_t others = adamw_->scalar_count();
    adamw_->begin_step(backend, {scalars.data, DType::f32, {others}}, lr, number);
    const auto rate = static_cast<float>(lr * config_.rate);
    lr_ = scalars.as<float>() + others;
    backend.copy_from_host({scalars.as<float>() + others, DType::f32, {1}}, &rate);
  }

  void update(Backend& backend, const OptimizerShard& shard) override {
    if (!shard.matrix) return adamw_->update(backend, shard);
    backend.muon_update({.weights = shard.weights, .compute = shard.compute, .direction = shard.gradient},
                        settings(shard));
  }

  bool takes_whole_matrices() const override { return true; }
  std::size_t matrix_states() const override { return 1; }
  void direct(Backend& backend, const OptimizerShard& shard) override {
    backend.muon_direction(shard.gradient, shard.state[0], settings(shard));
  }
  void transform(Backend& backend, const WholeMatrix& matrix, const MatrixWorkspace& workspace) override {
    orthogonalize(backend, matrix, workspace, config_.steps);
    backend.scale(matrix.direction, matrix.direction, static_cast<float>(factor(matrix.shape)));
  }

 private:
  MuonSettings settings(const OptimizerShard& shard) const {
    return {.lr = lr_,
            .grad_scale = shard.gradient_scale,
            .momentum = static_cast<float>(config_.momentum),
            .nesterov = config_.nesterov,
            .weight_decay = static_cast<float>(config_.adamw.weight_decay)};
  }
  double factor(const Shape& shape) const {
    const auto rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
    if (config_.scale == MuonScale::original) return std::sqrt(std::max(1.0, rows / columns));
    return 0.2 * std::sqrt(std::max(rows, columns));
  }

  MuonConfig config_;
  std::unique_ptr<Optimizer> adamw_;
  const float* lr_ = nullptr;  // of the matrices, in the backend's memory
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const MuonConfig& config) { return std::make_unique<Muon>(config); }

}  // namespace shoal
