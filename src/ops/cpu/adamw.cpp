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
  const float beta1 = settings.beta1, beta2 = settings.beta2, l2 = settings.l2 ? settings.weight_decay : 0.0f;
  const float share = settings.share;
  const bool commit = now.commit;
  const auto update = [&]<typename G>(std::int64_t begin, std::int64_t end) {
    // Named here, so that the compiler keeps them in registers across the stores.
    float* __restrict w_at = weights.as<float>() + begin;
    float* __restrict m_at = m.as<float>() + begin;
    float* __restrict v_at = v.as<float>() + begin;
    float* __restrict mean_at = mean ? mean.as<float>() + begin : nullptr;
    bfloat16* __restrict compute_at = compute ? compute.as<bfloat16>() + begin : nullptr;
    const G* __restrict g_at = grads.as<G>() + begin;
    for_lanes(end - begin, [=](std::int64_t i, std::int64_t live) {
      const Vec old_m = load_n(m_at + i, live), old_v = load_n(v_at + i, live);
      const Vec old_w = load_n(w_at + i, live);
      const auto mixed_m = [&](Vec g) { return beta1 * old_m + (1.0f - beta1) * g; };
      const auto mixed_v = [&](Vec g) { return beta2 * old_v + (1.0f - beta2) * g * g; };
      Vec g = load_n(g_at + i, live) * scale;
      if (l2 != 0) g += l2 * old_w;
      const Vec w = old_w * keep - rate * mixed_m(g) / (sqrt(mixed_v(g)) + eps);
      store_n(w_at + i, w, live);
      if (compute_at) store_n(compute_at + i, w, live);
      if (mean_at) {
        const Vec sum = load_n(mean_at + i, live) + g * share;
        store_n(mean_at + i, commit ? Vec{} : sum, live);
        g = sum;
      }
      if (!commit) return;
      store_n(m_at + i, mixed_m(g), live);
      store_n(v_at + i, mixed_v(g), live);
    });
  };
  with_type(grads.dtype, [&]<typename G>() {
    for_blocks(team_, weights.count(), 8192,
               [&](std::int64_t begin, std::int64_t end) { update.template operator()<G>(begin, end); });
  });
}

}  // namespace shoal::cpu
