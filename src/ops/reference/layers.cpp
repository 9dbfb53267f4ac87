// Embedding, layer norm, residual stream, GELU.
#include <cmath>
#include <numbers>

#include "ops/reference/mask.h"
#include "ops/reference/reference_backend.h"
#include "ops/reference/values.h"

namespace shoal {

using reference::Mask;
using reference::read;
using reference::Values;
using reference::write;

namespace {

// Calls visit(row of wte, or -1 when this shard does not have the token; row of wpe; row of out; b; t).
template <typename Visit>
void for_each_token(const Tensor& tokens, const Tensor& positions, std::int64_t first_class,
                    std::int64_t classes, const TokenWindow& window, Visit&& visit) {
  for (std::int64_t b = 0; b < tokens.dim(0); ++b) {
    for (std::int64_t t = 0; t < tokens.dim(1); ++t) {
      const std::int64_t row = b * tokens.dim(1) + t;
      const std::int64_t token = tokens.as<const std::int32_t>()[row] - first_class;
      const std::int64_t position =
          positions ? positions.as<const std::int32_t>()[row] : window.first_position + t;
      visit(token >= 0 && token < classes ? token : -1, position, row, b, t);
    }
  }
}

}  // namespace

void ReferenceBackend::embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte,
                                         const Tensor& wpe, std::int64_t first_class, const Dropout& dropout,
                                         const Tensor& positions) {
  const auto channels = out.columns();
  const auto classes = read(wte), places = read(wpe);
  const Mask mask(dropout);
  Values outs(out.count());
  for_each_token(tokens, positions, first_class, wte.rows(), dropout.window,
                 [&](auto token, auto position, auto row, auto b, auto t) {
                   if (token < 0) return;
                   for (std::int64_t c = 0; c < channels; ++c) {
                     const double value = places[position * channels + c] + classes[token * channels + c];
                     outs[row * channels + c] = value * mask(b, t, c);
                   }
                 });
  write(out, outs);
}

void ReferenceBackend::embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dout,
                                          const Tensor& tokens, std::int64_t first_class,
                                          const Dropout& dropout) {
  const auto channels = dwte.columns();
  const auto douts = read(dout);
  const Mask mask(dropout);
  auto classes = read(dwte), positions = read(dwpe);
  for_each_token(tokens, {}, first_class, dwte.rows(), dropout.window,
                 [&](auto token, auto position, auto row, auto b, auto t) {
                   for (std::int64_t c = 0; c < channels; ++c) {
                     const double gradient = douts[row * channels + c] * mask(b, t, c);
                     if (token >= 0) classes[token * channels + c] += gradient;
                     positions[position * channels + c] += gradient;
                   }
                 });
  write(dwte, classes);
  write(dwpe, positions);
}

void ReferenceBackend::layernorm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd,
                                         const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  constexpr double kEps = 1e-5;
  const auto rows = x.rows(), channels = x.columns();
  const auto xs = read(x), gammas = read(gamma), betas = read(beta);
  Values ys(xs.size()), means(rows), rstds(rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* in = &xs[r * channels];
    double sum = 0, squares = 0;
    for (std::int64_t c = 0; c < channels; ++c) sum += in[c];
    means[r] = sum / static_cast<double>(channels);
    for (std::int64_t c = 0; c < channels; ++c) squares += (in[c] - means[r]) * (in[c] - means[r]);
    rstds[r] = 1 / std::sqrt(squares / static_cast<double>(channels) + kEps);
    for (std::int64_t c = 0; c < channels; ++c) {
      ys[r * channels + c] = (in[c] - means[r]) * rstds[r] * gammas[c] + (betas.empty() ? 0 : betas[c]);
    }
  }
  write(y, ys);
  write(mean, means);
  write(rstd, rstds);
}

void ReferenceBackend::layernorm_backward(const LayerNormBackward& args) {
  const auto& [dx, dgamma, dbeta, dy, x, gamma, mean, rstd] = args;
  const auto rows = x.rows(), channels = x.columns();
  const auto dys = read(dy), xs = read(x), gammas = read(gamma), means = read(mean), rstds = read(rstd);
  auto dxs = read(dx), dgammas = read(dgamma), dbetas = read(dbeta);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto normal = [&](std::int64_t c) { return (xs[r * channels + c] - means[r]) * rstds[r]; };
    const auto dnormal = [&](std::int64_t c) { return dys[r * channels + c] * gammas[c]; };
    double along_ones = 0, along_normal = 0;  // the parts that normalisation cancels
    for (std::int64_t c = 0; c < channels; ++c) {
      along_ones += dnormal(c) / static_cast<double>(channels);
      along_normal += dnormal(c) * normal(c) / static_cast<double>(channels);
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      dxs[r * channels + c] += rstds[r] * (dnormal(c) - along_ones - normal(c) * along_normal);
      dgammas[c] += dys[r * channels + c] * normal(c);
      if (dbeta) dbetas[c] += dys[r * channels + c];
    }
  }
  write(dx, dxs);
  write(dgamma, dgammas);
  if (dbeta) write(dbeta, dbetas);
}

void ReferenceBackend::residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                                        const Dropout& dropout) {
  auto outs = read(residual);
  const auto branches = read(branch);
  const Mask mask(dropout);
  for (std::int64_t b = 0, i = 0; b < out.dim(0); ++b) {
    for (std::int64_t t = 0; t < out.dim(1); ++t) {
      for (std::int64_t c = 0; c < out.dim(2); ++c, ++i) outs[i] += branches[i] * mask(b, t, c);
    }
  }
  write(out, outs);
}

void ReferenceBackend::residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout& dropout) {
  auto gradients = read(dout);
  const Mask mask(dropout);
  for (std::int64_t b = 0, i = 0; b < dout.dim(0); ++b) {
    for (std::int64_t t = 0; t < dout.dim(1); ++t) {
      for (std::int64_t c = 0; c < dout.dim(2); ++c, ++i) gradients[i] *= mask(b, t, c);
    }
  }
  write(dbranch, gradients);
}

namespace {

// The tanh form of Hendrycks and Gimpel (2016) is x/2 (1 + tanh(a (x + b x^3))).
constexpr double kGeluA = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluB = 0.044715;

double gelu(double x, Gelu kind) {
  if (kind == Gelu::erf) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  return 0.5 * x * (1 + std::tanh(kGeluA * (x + kGeluB * x * x * x)));
}

double gelu_slope(double x, Gelu kind) {
  if (kind == Gelu::erf) {
    const double density = std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * density;
  }
  const double t = std::tanh(kGeluA * (x + kGeluB * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluA * (1 + 3 * kGeluB * x * x);
}

}  // namespace

void ReferenceBackend::gelu_forward(const Tensor& y, const Tensor& x, Gelu kind) {
  auto values = read(x);
  for (double& value : values) value = gelu(value, kind);
  write(y, values);
}

void ReferenceBackend::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind) {
  auto gradients = read(dy);
  const auto xs = read(x);
  for (std::size_t i = 0; i < xs.size(); ++i) gradients[i] *= gelu_slope(xs[i], kind);
  write(dx, gradients);
}

}  // namespace shoal
