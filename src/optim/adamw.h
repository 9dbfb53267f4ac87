// AdamW (Loshchilov and Hutter 2019), and AccumAdamW: its moments change once per several steps, so that
// their noise is that of a larger batch, while parameters move at every step.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/kernels.h"

namespace shoal {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool l2 = false;      // the decay is part of the gradient, as Adam's, and not decoupled
  int accum_steps = 1;  // a window; more than 1 needs its mean gradient kept, a third state

  bool operator==(const AdamWConfig&) const = default;
};

// The settings of every update; `decayed` is whether weight decay applies to the parameters.
inline AdamWSettings adamw_settings(const AdamWConfig& config, bool decayed) {
  return {.beta1 = static_cast<float>(config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .eps = static_cast<float>(config.eps),
          .weight_decay = decayed ? static_cast<float>(config.weight_decay) : 0.0f,
          .l2 = config.l2,
          .share = 1.0f / static_cast<float>(config.accum_steps)};
}

// The scalars of update `number`, counted from 1. Corrections count windows; every accum_steps-th update ends
// one.
inline AdamWScalars adamw_scalars(const AdamWConfig& config, double lr, std::int64_t number) {
  const auto window = static_cast<double>((number + config.accum_steps - 1) / config.accum_steps);
  return {.lr = static_cast<float>(lr),
          .correction1 = static_cast<float>(1.0 - std::pow(config.beta1, window)),
          .correction2 = static_cast<float>(1.0 - std::pow(config.beta2, window)),
          .commit = number % config.accum_steps == 0 ? 1 : 0};
}

}  // namespace shoal
