// When a run logs, evaluates and saves.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace shoal {

class Calendar {
 public:
  // `windows`: the training sequences of an epoch. The config's number of steps must be resolved.
  Calendar(const Config& config, std::int64_t windows) : config_(config), windows_(windows) {}

  std::int64_t last_step() const { return config_.train.steps; }
  bool evaluates() const { return config_.eval.interval >= 0; }
  // Before the first step, unless evaluations are only at the end.
  bool evaluates_at_start() const {
    return evaluates() && config_.eval.at_start && (config_.eval.interval > 0 || config_.eval.epochs > 0);
  }

  // Each after `step` steps.
  bool logs(std::int64_t step) const { return due(step, config_.log.interval, 0); }
  bool evaluates(std::int64_t step) const {
    return evaluates() && (step == last_step() || due(step, config_.eval.interval, config_.eval.epochs));
  }
  bool saves(std::int64_t step) const {
    return due(step, config_.checkpoint.interval, config_.checkpoint.epochs);
  }
  bool saves_in_memory(std::int64_t step) const {  // the last step is saved on the disk
    return step % config_.checkpoint.memory_interval == 0 && step != last_step();
  }

 private:
  // After every `interval` steps, after the step that ends every `epochs`-th epoch, and after the last one.
  bool due(std::int64_t step, std::int64_t interval, std::int64_t epochs) const {
    if (interval == 0 && epochs == 0) return false;
    if (step == last_step() || (interval > 0 && step % interval == 0)) return true;
    const std::int64_t period = epochs * windows_, batch = config_.train.global_batch;
    return epochs > 0 && step * batch / period != (step - 1) * batch / period;
  }

  const Config& config_;
  std::int64_t windows_;
};

}  // namespace shoal
