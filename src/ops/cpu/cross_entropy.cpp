// Softmax cross-entropy over a chunk of rows. A row of logits fits the second-level cache, so its passes cost
// little.
#include <cmath>
#include <limits>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

float row_maximum(const float* x, std::int64_t n) {
  Vec most = splat(-std::numeric_limits<float>::infinity());
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) most = max(load(x + i), most);
  float result = max(most);
  for (; i < n; ++i) result = std::max(result, x[i]);
  return result;
}

std::int64_t first_equal(const float* x, std::int64_t n, float value) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] == value) return i;
  }
  return 0;  // only when the row holds NaN
}

}  // namespace

void CpuBackend::cross_entropy_stats(const Tensor& maximum, const Tensor& exp_sum, const Tensor& target_logit,
                                     const Tensor& argmax, const Tensor& logits, const Tensor& targets,
                                     std::int64_t first_class, std::int64_t valid) {
  const std::int64_t classes = logits.columns();
  for_blocks(threads_, logits.rows(), rows_per_block(classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* x = logits.as<float>() + row * classes;
      const float most = row_maximum(x, valid);
      Vec total{};
      for_lanes(valid, [&](std::int64_t i, std::int64_t live) {
        Vec e = exp(load_n(x + i, live) - most);
        for (std::int64_t lane = live; lane < kLanes; ++lane) e[lane] = 0;
        total += e;
      });
      const std::int64_t target = targets.as<std::int32_t>()[row] - first_class;
      maximum.as<float>()[row] = most;
      exp_sum.as<float>()[row] = cpu::sum(total);
      target_logit.as<float>()[row] = target >= 0 && target < valid ? x[target] : 0.0f;
      argmax.as<std::int32_t>()[row] = static_cast<std::int32_t>(first_class + first_equal(x, valid, most));
    }
  });
}

void CpuBackend::cross_entropy_loss(const Tensor& losses, const Tensor& maximum, const Tensor& exp_sum,
                                    const Tensor& target_logit, const Tensor& targets) {
  for (std::int64_t row = 0; row < losses.count(); ++row) {
    losses.as<float>()[row] =
        targets.as<std::int32_t>()[row] < 0
            ? 0.0f
            : maximum.as<float>()[row] - target_logit.as<float>()[row] + std::log(exp_sum.as<float>()[row]);
  }
}

void CpuBackend::cross_entropy_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& maximum,
                                        const Tensor& exp_sum, const Tensor& targets,
                                        std::int64_t first_class, std::int64_t valid, float scale) {
  const std::int64_t classes = logits.columns();
  with_type(dlogits.dtype, [&]<typename T>() {
    for_blocks(threads_, logits.rows(), rows_per_block(classes), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const float* x = logits.as<float>() + row * classes;
        T* out = dlogits.as<T>() + row * classes;
        const std::int32_t wanted = targets.as<std::int32_t>()[row];
        const std::int64_t target = wanted - first_class;
        const float most = maximum.as<float>()[row];
        const float factor = wanted < 0 ? 0.0f : scale / exp_sum.as<float>()[row];
        const float target_logit = wanted >= 0 && target >= 0 && target < valid ? x[target] : 0.0f;
        for_lanes(valid, [&](std::int64_t i, std::int64_t live) {
          const Vec e = exp(load_n(x + i, live) - most);
          store_n(out + i, wanted < 0 ? Vec{} : factor * e, live);
        });
        for (std::int64_t i = valid; i < classes; ++i) out[i] = from_float<T>(0.0f);
        if (wanted >= 0 && target >= 0 && target < valid) {
          const float e = exp(splat(target_logit - most))[0];
          out[target] = from_float<T>(factor * e - scale);
        }
      }
    });
  });
}

}  // namespace shoal::cpu
