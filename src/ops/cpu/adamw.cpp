// AdamW and AccumAdamW over flat buffers, in one pass: they are bound by memory.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {

namespace {

// An update whose scalars have been read.
struct Update {
  AdamWTensors tensors;
  AdamWScalars now;
  float scale, keep, rate, eps, beta1, beta2, l2, share;

  Update(const AdamWTensors& args, const AdamWSettings& settings);
  template <typename G>
  void apply(std::int64_t begin, std::int64_t end) const;
};

Update::Update(const AdamWTensors& args, const AdamWSettings& settings)
    : tensors(args),
      now(*settings.scalars),
      scale(settings.grad_scale ? *settings.grad_scale : 1.0f),
      keep(settings.l2 ? 1.0f : 1.0f - now.lr * settings.weight_decay),
      // Numerator and denominator times the root of the second moment's correction: a division less.
      rate(now.lr / now.correction1 * std::sqrt(now.correction2)),
      eps(settings.eps * std::sqrt(now.correction2)),
      beta1(settings.beta1),
      beta2(settings.beta2),
      l2(settings.l2 ? settings.weight_decay : 0.0f),
      share(settings.share) {}

template <typename G>
void Update::apply(std::int64_t begin, std::int64_t end) const {
  // Named and copied here, so that the compiler keeps all in registers across the stores.
  float* __restrict w_at = tensors.weights.as<float>() + begin;
  float* __restrict m_at = tensors.m.as<float>() + begin;
  float* __restrict v_at = tensors.v.as<float>() + begin;
  float* __restrict mean_at = tensors.mean ? tensors.mean.as<float>() + begin : nullptr;
  bfloat16* __restrict compute_at = tensors.compute ? tensors.compute.as<bfloat16>() + begin : nullptr;
  const G* __restrict g_at = tensors.grads.as<G>() + begin;
  for_lanes(end - begin, [=, *this](std::int64_t i, std::int64_t live) {
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
      store_n(mean_at + i, now.commit ? Vec{} : sum, live);
      g = sum;
    }
    if (!now.commit) return;
    store_n(m_at + i, mixed_m(g), live);
    store_n(v_at + i, mixed_v(g), live);
  });
}

constexpr std::int64_t kBlock = 8192;
// From here on an update waits for memory, of which one thread uses nearly all that there is.
constexpr std::int64_t kLater = std::int64_t{1} << 20;

}  // namespace

void CpuBackend::adamw(const AdamWTensors& args, const AdamWSettings& settings) {
  const Update update(args, settings);
  if (std::isnan(update.scale)) {
    if (args.compute) convert(args.compute, args.weights);
    return;
  }
  with_type(args.grads.dtype, [&]<typename G>() {
    for_blocks(team_, args.weights.count(), kBlock,
               [&](std::int64_t begin, std::int64_t end) { update.apply<G>(begin, end); });
  });
}

void CpuBackend::adamw_later(const AdamWTensors& args, const AdamWSettings& settings, Event& done) {
  const Update update(args, settings);
  const std::int64_t n = args.weights.count();
  if (std::isnan(update.scale) || n < kLater) return adamw(args, settings);
  with_type(args.grads.dtype, [&]<typename G>() {
    const auto block = [update, n](std::int64_t i) {
      update.apply<G>(i * kBlock, std::min((i + 1) * kBlock, n));
    };
    static_cast<LaterEvent&>(done).work = team_.later((n + kBlock - 1) / kBlock, block);
  });
}

}  // namespace shoal::cpu
