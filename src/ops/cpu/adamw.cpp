// AdamW and AccumAdamW over flat buffers, in one pass: they are bound by memory.
#include <cmath>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {

void CpuBackend::adamw(const AdamWTensors& args, const AdamWSettings& settings) {
  const auto& [weights, compute, m, v, mean, grads] = args;
  const float scale = settings.grad_scale ? *settings.grad_scale : 1.0f;
  if (std::isnan(scale)) {
    if (compute) convert(compute, weights);
    return;
  }
  const AdamWScalars now = *settings.scalars;
  const float keep = settings.l2 ? 1.0f : 1.0f - now.lr * settings.weight_decay;
  // Numerator and denominator times the root of the second moment's correction: a division less.
  const float root2 = std::sqrt(now.correction2);
  const float rate = now.lr / now.correction1 * root2, eps = settings.eps * root2;
  for_blocks(team_, weights.count(), 8192, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
      const std::int64_t at = begin + i;
      const Vec old_m = load_n(m.as<float>() + at, live), old_v = load_n(v.as<float>() + at, live);
      const Vec old_w = load_n(weights.as<float>() + at, live);
      const auto mixed_m = [&](Vec g) { return settings.beta1 * old_m + (1.0f - settings.beta1) * g; };
      const auto mixed_v = [&](Vec g) { return settings.beta2 * old_v + (1.0f - settings.beta2) * g * g; };
      Vec g = load_n(grads.as<float>() + at, live) * scale;
      if (settings.l2) g += settings.weight_decay * old_w;
      const Vec w = old_w * keep - rate * mixed_m(g) / (sqrt(mixed_v(g)) + eps);
      store_n(weights.as<float>() + at, w, live);
      if (compute) store_n(compute.as<bfloat16>() + at, w, live);
      if (mean) {
        const Vec sum = load_n(mean.as<float>() + at, live) + g * settings.share;
        store_n(mean.as<float>() + at, now.commit ? Vec{} : sum, live);
        g = sum;
      }
      if (!now.commit) return;
      store_n(m.as<float>() + at, mixed_m(g), live);
      store_n(v.as<float>() + at, mixed_v(g), live);
    });
  });
}

}  // namespace shoal::cpu
