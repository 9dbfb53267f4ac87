// Memory, element-wise operations, reductions, initial values and AdamW.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/int8.h"
#include "ops/reference/reference.h"
#include "ops/reference/reference_backend.h"
#include "ops/reference/values.h"

namespace shoal {

using reference::read;
using reference::write;

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

void* ReferenceBackend::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t padded = (bytes / kAlignment + 1) * kAlignment;  // never zero
  void* data = std::aligned_alloc(kAlignment, padded);
  if (data == nullptr) fail("cannot allocate {} bytes", bytes);
  return std::memset(data, 0, padded);
}

void ReferenceBackend::release(void* data, std::size_t) { std::free(data); }

void ReferenceBackend::copy_to_host(void* host, const Tensor& from) {
  if (from.count() > 0) std::memcpy(host, from.data, from.bytes());
}
void ReferenceBackend::copy_from_host(const Tensor& to, const void* host) {
  if (to.count() > 0) std::memcpy(to.data, host, to.bytes());
}

void ReferenceBackend::zero(const Tensor& x) { std::memset(x.data, 0, x.bytes()); }

void ReferenceBackend::convert(const Tensor& out, const Tensor& x) {
  if (out.dtype == x.dtype) {
    std::memcpy(out.data, x.data, x.bytes());
  } else {
    write(out, read(x));
  }
}

void ReferenceBackend::add(const Tensor& out, const Tensor& x) {
  auto sums = read(out);
  const auto terms = read(x);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
  write(out, sums);
}

void ReferenceBackend::to_int8(const Tensor& out, const Tensor& w) {
  const auto values = read(w);
  const std::vector<float> floats(values.begin(), values.end());
  const Int8Rows packed(out);
  for (std::int64_t n = 0; n < packed.rows(); ++n) packed.set(n, floats.data() + n * packed.columns());
}

void ReferenceBackend::scale(const Tensor& out, const Tensor& x, float factor) {
  auto values = read(x);
  for (double& value : values) value *= factor;
  write(out, values);
}

void ReferenceBackend::sum(const Tensor& total, const Tensor& x) {
  for (double value : read(x)) *total.as<double>() += value;
}

void ReferenceBackend::sum_squares(const Tensor& totals, const Tensor& x) {
  const auto values = read(x);
  const std::size_t pieces = static_cast<std::size_t>(totals.count());
  for (std::size_t i = 0; i < values.size(); ++i) {
    totals.as<double>()[i / (values.size() / pieces)] += values[i] * values[i];
  }
}

void ReferenceBackend::sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) {
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t i = 0; i < n; ++i) *total.as<double>() += x.as<double>()[row * x.columns() + i];
  }
}

void ReferenceBackend::clip_scale(const Tensor& scale, const Tensor& squares, double max_norm,
                                  const Tensor& losses) {
  const double norm = std::sqrt(*squares.as<double>());
  double result = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  const auto spoil = [&](double x) {
    if (!std::isfinite(x)) result = std::numeric_limits<double>::quiet_NaN();
  };
  spoil(norm);
  for (std::int64_t i = 0; losses && i < losses.count(); ++i) spoil(losses.as<double>()[i]);
  *scale.as<float>() = static_cast<float>(result);
}

void ReferenceBackend::fill_normal(const Tensor& out, std::uint64_t seed, std::uint64_t name,
                                   std::int64_t first, double stddev) {
  const auto key = philox_key(seed, PhiloxStream::init);
  auto values = read(out);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t element = static_cast<std::uint64_t>(first) + i;
    const std::uint64_t pair = element / 2;
    const auto block =
        philox(key, {static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32),
                     static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)});
    values[i] = stddev * to_normals(block)[element % 2];
  }
  write(out, values);
}

void ReferenceBackend::fill(const Tensor& out, float value) {
  write(out, reference::Values(static_cast<std::size_t>(out.count()), value));
}

void ReferenceBackend::adamw(const AdamWTensors& args, const AdamWSettings& settings) {
  const auto& [weights, compute, m, v, mean, grads] = args;
  const auto& now = *settings.scalars;
  const double lr = now.lr, beta1 = settings.beta1, beta2 = settings.beta2, decay = settings.weight_decay;
  const double grad_scale = settings.grad_scale != nullptr ? *settings.grad_scale : 1.0;
  if (std::isnan(grad_scale)) {
    if (compute) write(compute, read(weights));
    return;
  }
  auto weight = read(weights), first = read(m), second = read(v);
  auto window = mean ? read(mean) : reference::Values();
  const auto grad = read(grads);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const double g = grad[i] * grad_scale + (settings.l2 ? decay * weight[i] : 0);
    const double first_now = beta1 * first[i] + (1 - beta1) * g;
    const double second_now = beta2 * second[i] + (1 - beta2) * g * g;
    const double denominator =
        std::sqrt(second_now) / std::sqrt(static_cast<double>(now.correction2)) + settings.eps;
    if (!settings.l2) weight[i] *= 1 - lr * decay;
    weight[i] -= lr / now.correction1 * first_now / denominator;
    if (mean) window[i] += g * settings.share;
    if (!now.commit) continue;
    const double committed = mean ? std::exchange(window[i], 0) : g;
    first[i] = beta1 * first[i] + (1 - beta1) * committed;
    second[i] = beta2 * second[i] + (1 - beta2) * committed * committed;
  }
  write(weights, weight);
  write(m, first);
  write(v, second);
  if (mean) write(mean, window);
  if (compute) write(compute, read(weights));  // rounded from the stored weights, not from the exact ones
}

}  // namespace shoal
