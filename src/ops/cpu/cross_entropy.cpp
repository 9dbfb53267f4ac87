// Softmax cross-entropy over a chunk of rows. A row of logits fits the second-level cache, so its passes cost
// little.
#include <cmath>
#include <limits>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

struct RowMaximum {
  float value;
  std::int64_t index;  // the first among equals
};

RowMaximum row_maximum(const float* x, std::int64_t n) {
  Vec most = splat(-std::numeric_limits<float>::infinity());
  VecI index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  VecI at = index;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes, at += kLanes) {
    const Vec value = load(x + i);
    const VecI above = value > most;
    most = above ? value : most;
    index = above ? at : index;
  }
  RowMaximum best{max(most), std::numeric_limits<std::int32_t>::max()};
  for (int lane = 0; lane < kLanes; ++lane) {
    if (most[lane] == best.value) best.index = std::min<std::int64_t>(best.index, index[lane]);
  }
  for (; i < n; ++i) {
    if (x[i] > best.value) best = {x[i], i};
  }
  return best;
}

}  // namespace

void CpuBackend::cross_entropy_stats(const Tensor& maximum, const Tensor& exp_sum, const Tensor& target_logit,
                                     const Tensor& argmax, const Tensor& logits, const Tensor& targets,
                                     std::int64_t first_class, std::int64_t valid) {
  const std::int64_t classes = logits.columns();
  for_blocks(threads_, logits.rows(), rows_per_block(classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* x = logits.as<float>() + row * classes;
      const RowMaximum top = row_maximum(x, valid);
      const float most = top.value;
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
      argmax.as<std::int32_t>()[row] = static_cast<std::int32_t>(first_class + top.index);
    }
  });
}

void CpuBackend::cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                                       const Tensor& maximum) {
  for (std::int64_t row = 0; row < exp_sum.count(); ++row) {
    const float mine = own.as<float>()[row], most = maximum.as<float>()[row];
    exp_sum.as<float>()[row] *= std::exp(mine - most);
    if (mine < most) argmax.as<std::int32_t>()[row] = std::numeric_limits<std::int32_t>::max();
  }
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
