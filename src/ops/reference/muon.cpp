// Muon's parts beside its products.
#include <algorithm>
#include <cmath>

#include "ops/reference/reference_backend.h"
#include "ops/reference/values.h"

namespace shoal {

using reference::read;
using reference::write;

void ReferenceBackend::muon_direction(const Tensor& direction, const Tensor& momentum,
                                      const MuonSettings& settings) {
  const double scale = settings.grad_scale != nullptr ? *settings.grad_scale : 1.0, beta = settings.momentum;
  if (std::isnan(scale)) return;
  auto to = read(direction), mixed = read(momentum);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const double g = to[i] * scale;
    mixed[i] = beta * mixed[i] + (1 - beta) * g;
    to[i] = settings.nesterov ? beta * mixed[i] + (1 - beta) * g : mixed[i];
  }
  write(momentum, mixed);
  write(direction, to);
}

void ReferenceBackend::muon_update(const MuonTensors& args, const MuonSettings& settings) {
  const double lr = *settings.lr;
  auto weights = read(args.weights);
  const auto direction = read(args.direction);
  if (settings.grad_scale == nullptr || !std::isnan(*settings.grad_scale)) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = weights[i] * (1 - lr * settings.weight_decay) - lr * direction[i];
    write(args.weights, weights);
  }
  if (args.compute) write(args.compute, read(args.weights));
}

void ReferenceBackend::normalize(const Tensor& out, const Tensor& x, const Tensor& squares) {
  auto values = read(x);
  const double norm = std::max(std::sqrt(*squares.as<double>()), kMuonEps);
  for (double& value : values) value /= norm;
  write(out, values);
}

void ReferenceBackend::transpose(const Tensor& out, const Tensor& x) {
  const auto from = read(x);
  auto to = from;
  const auto rows = static_cast<std::size_t>(x.rows()), columns = static_cast<std::size_t>(x.columns());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  write(out, to);
}

void ReferenceBackend::scale_and_add(const Tensor& x, float factor, const Tensor& y, float y_factor) {
  auto values = read(x);
  const auto terms = read(y);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = factor * values[i] + y_factor * terms[i];
  write(x, values);
}

void ReferenceBackend::set_symmetric_rows(const SymmetricRows& args) {
  auto out = read(args.out);
  const auto rows = read(args.rows), base = args.base ? read(args.base) : reference::Values();
  const auto size = static_cast<std::size_t>(args.out.columns()),
             stride = static_cast<std::size_t>(args.rows.columns()),
             first = static_cast<std::size_t>(args.first);
  for (std::size_t i = first; i < stride; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double value = args.factor * rows[(i - first) * stride + j];
      if (args.base) value += args.base_factor * base[i * size + j];
      out[i * size + j] = out[j * size + i] = value;
    }
  }
  write(args.out, out);
}

}  // namespace shoal
