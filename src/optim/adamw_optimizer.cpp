#include "optim/optimizer.h"

namespace shoal {
namespace {

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const AdamWConfig& config) : config_(config) {}

  std::vector<std::string_view> state_names() const override {
    if (config_.accum_steps == 1) return {"m", "v"};
    return {"m", "v", "a"};
  }
  std::string_view state_text() const override {
    return config_.accum_steps == 1 ? "two moments" : "two moments and a window's mean gradient";
  }
  std::int64_t scalar_count() const override { return sizeof(AdamWScalars) / sizeof(float); }

  void begin_step(Backend& backend, const Tensor& scalars, double lr, std::int64_t number) override {
    const AdamWScalars now = adamw_scalars(config_, lr, number);
    backend.copy_from_host(scalars, &now);
    scalars_ = scalars.as<AdamWScalars>();
  }

  void update(Backend& backend, const OptimizerShard& shard) override {
    auto settings = adamw_settings(config_, shard.decayed);
    settings.scalars = scalars_;
    settings.grad_scale = shard.gradient_scale;
    const AdamWTensors tensors{.weights = shard.weights,
                               .compute = shard.compute,
                               .m = shard.state[0],
                               .v = shard.state[1],
                               .mean = shard.state.size() > 2 ? shard.state[2] : Tensor{},
                               .grads = shard.gradient};
    shard.done ? backend.adamw_later(tensors, settings, *shard.done) : backend.adamw(tensors, settings);
  }

 private:
  AdamWConfig config_;
  const AdamWScalars* scalars_ = nullptr;  // in the backend's memory
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const AdamWConfig& config) {
  return std::make_unique<AdamW>(config);
}

}  // namespace shoal
