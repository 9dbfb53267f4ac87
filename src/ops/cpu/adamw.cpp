// AdamW over flat buffers: one pass over memory, which is what bounds it.
#include <cmath>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {

void CpuBackend::adamw(const Tensor& weights, const Tensor& compute, const Tensor& m, const Tensor& v,
                       const Tensor& grads, const AdamWStep& step) {
  const float scale = step.grad_scale ? *step.grad_scale : 1.0f;
  const float keep = 1.0f - step.lr * step.weight_decay;
  const float rate = step.lr / step.correction1;
  const float root2 = std::sqrt(step.correction2);
  for_blocks(threads_, weights.count(), 65536, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
      const std::int64_t at = begin + i;
      const Vec g = load_n(grads.as<float>() + at, live) * scale;
      const Vec new_m = step.beta1 * load_n(m.as<float>() + at, live) + (1.0f - step.beta1) * g;
      const Vec new_v = step.beta2 * load_n(v.as<float>() + at, live) + (1.0f - step.beta2) * g * g;
      const Vec w =
          load_n(weights.as<float>() + at, live) * keep - rate * new_m / (sqrt(new_v) / root2 + step.eps);
      store_n(m.as<float>() + at, new_m, live);
      store_n(v.as<float>() + at, new_v, live);
      store_n(weights.as<float>() + at, w, live);
      if (compute) store_n(compute.as<bfloat16>() + at, w, live);
    });
  });
}

}  // namespace shoal::cpu
