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
  std::int64_t scalar_count() const override { return sizeof(AdamWNumbers) / sizeof(float); }

  void begin_step(Backend& backend, const Tensor& scalars, double lr, std::int64_t number) override {
    lr_ = lr;
    number_ = number;
    if (!backend.can_capture()) return;
    const AdamWNumbers numbers = adamw_step(config_, lr, number, true).numbers();
    backend.copy_from_host(scalars, &numbers);
    now_ = scalars.as<AdamWNumbers>();
  }

  void update(Backend& backend, const OptimizerShard& shard) override {
    auto step = adamw_step(config_, lr_, number_, shard.decayed);
    step.grad_scale = shard.gradient_scale;
    step.now = now_;
    backend.adamw({.weights = shard.weights,
                   .compute = shard.compute,
                   .m = shard.state[0],
                   .v = shard.state[1],
                   .mean = shard.state.size() > 2 ? shard.state[2] : Tensor{},
                   .grads = shard.gradient},
                  step);
  }

 private:
  AdamWConfig config_;
  double lr_ = 0;
  std::int64_t number_ = 1;
  const AdamWNumbers* now_ = nullptr;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const AdamWConfig& config) {
  return std::make_unique<AdamW>(config);
}

}  // namespace shoal
