// AdamW's settings and their value at a step (Loshchilov and Hutter 2019).
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/backend.h"

namespace shoal {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// `update` counts from 1. `decay` is whether the parameters are among those that decay.
inline AdamWStep adamw_step(const AdamWConfig& config, double lr, std::int64_t update, bool decay) {
  const auto t = static_cast<double>(update);
  return {.lr = static_cast<float>(lr),
          .beta1 = static_cast<float>(config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .eps = static_cast<float>(config.eps),
          .weight_decay = decay ? static_cast<float>(config.weight_decay) : 0.0f,
          .correction1 = static_cast<float>(1.0 - std::pow(config.beta1, t)),
          .correction2 = static_cast<float>(1.0 - std::pow(config.beta2, t))};
}

}  // namespace shoal
