// Softmax cross-entropy over a chunk of rows. A row of logits fits the second-level cache, so all passes over
// it follow each other where they can.
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
  VecI index = lane_numbers(), at = index;
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

// The statistics of a row, in which exponentials less the maximum take the place of logits if `kKeep`.
template <bool kKeep>
void find_stats(const CrossEntropy& args, std::int64_t row) {
  float* x = args.logits.as<float>() + row * args.logits.columns();
  const RowMaximum top = row_maximum(x, args.valid);
  const std::int64_t target = args.targets.as<std::int32_t>()[row] - args.first_class;
  args.target_logit.as<float>()[row] = target >= 0 && target < args.valid ? x[target] : 0.0f;
  const float most = top.value;
  Vec total{};
  for_lanes(args.valid, [&](std::int64_t i, std::int64_t live) {
    const Vec e = exp(load_n(x + i, live) - most);
    if constexpr (kKeep) store_n(x + i, e, live);
    total += select(lanes_below(live), e, Vec{});
  });
  args.maximum.as<float>()[row] = most;
  args.exp_sum.as<float>()[row] = cpu::sum(total);
  args.argmax.as<std::int32_t>()[row] = static_cast<std::int32_t>(args.first_class + top.index);
}

void find_loss(const CrossEntropy& args, std::int64_t row) {
  args.losses.as<float>()[row] = args.targets.as<std::int32_t>()[row] < 0
                                     ? 0.0f
                                     : args.maximum.as<float>()[row] - args.target_logit.as<float>()[row] +
                                           std::log(args.exp_sum.as<float>()[row]);
}

// The gradient of a row, whose logits are exponentials less the maximum if `kKept`.
template <bool kKept>
void find_gradient(const CrossEntropy& args, std::int64_t row) {
  const std::int64_t classes = args.logits.columns();
  const float* x = args.logits.as<float>() + row * classes;
  const float most = args.maximum.as<float>()[row];
  const auto exponential = [&](Vec value) { return kKept ? value : exp(value - most); };
  const std::int32_t wanted = args.targets.as<std::int32_t>()[row];
  const std::int64_t target = wanted - args.first_class;
  const bool here = wanted >= 0 && target >= 0 && target < args.valid;
  const float factor = wanted < 0 ? 0.0f : args.scale / args.exp_sum.as<float>()[row];
  const float of_target = here ? factor * exponential(splat(x[target]))[0] - args.scale : 0.0f;
  with_type(args.dlogits.dtype, [&]<typename T>() {
    T* out = args.dlogits.as<T>() + row * classes;
    for_lanes(args.valid, [&](std::int64_t i, std::int64_t live) {
      const Vec e = exponential(load_n(x + i, live));
      store_n(out + i, wanted < 0 ? Vec{} : factor * e, live);
    });
    for (std::int64_t i = args.valid; i < classes; ++i) out[i] = from_float<T>(0.0f);
    if (here) out[target] = from_float<T>(of_target);
  });
}

// f(row) for all rows.
template <typename F>
void for_rows(ThreadTeam& team, const Tensor& logits, F&& f) {
  for_blocks(team, logits.rows(), rows_per_block(logits.columns()),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) f(row);
             });
}

}  // namespace

void CpuBackend::cross_entropy_stats(const CrossEntropy& args) {
  for_rows(team_, args.logits, [&](std::int64_t row) { find_stats<false>(args, row); });
}

void CpuBackend::cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                                       const Tensor& maximum) {
  for (std::int64_t row = 0; row < exp_sum.count(); ++row) {
    const float mine = own.as<float>()[row], most = maximum.as<float>()[row];
    exp_sum.as<float>()[row] *= std::exp(mine - most);
    if (mine < most) argmax.as<std::int32_t>()[row] = std::numeric_limits<std::int32_t>::max();
  }
}

void CpuBackend::cross_entropy_loss(const CrossEntropy& args) {
  for (std::int64_t row = 0; row < args.losses.count(); ++row) find_loss(args, row);
}

void CpuBackend::cross_entropy_backward(const CrossEntropy& args) {
  for_rows(team_, args.logits, [&](std::int64_t row) { find_gradient<false>(args, row); });
}

void CpuBackend::cross_entropy_train(const CrossEntropy& args) {
  for_rows(team_, args.logits, [&](std::int64_t row) {
    find_stats<true>(args, row);
    find_loss(args, row);
    find_gradient<true>(args, row);
  });
}

}  // namespace shoal::cpu
