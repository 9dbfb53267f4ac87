// Causal self-attention with whole rows of probabilities.
#include <algorithm>
#include <cmath>
#include <span>

#include "ops/reference/mask.h"
#include "ops/reference/reference_backend.h"
#include "ops/reference/values.h"

namespace shoal {

using reference::Mask;
using reference::read;
using reference::Values;
using reference::write;

namespace {

// Offsets in qkv [B, T, 3, H, D], out [B, T, H, D] and lse [B, H, T].
struct Layout {
  std::int64_t B, T, H, D;
  explicit Layout(const Tensor& qkv) : B(qkv.dim(0)), T(qkv.dim(1)), H(qkv.dim(3)), D(qkv.dim(4)) {}

  std::int64_t q(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return ((b * T + t) * 3 * H + h) * D;
  }
  std::int64_t k(std::int64_t b, std::int64_t t, std::int64_t h) const { return q(b, t, h) + H * D; }
  std::int64_t v(std::int64_t b, std::int64_t t, std::int64_t h) const { return q(b, t, h) + 2 * H * D; }
  std::int64_t out(std::int64_t b, std::int64_t t, std::int64_t h) const { return ((b * T + t) * H + h) * D; }
  std::int64_t lse(std::int64_t b, std::int64_t t, std::int64_t h) const { return (b * H + h) * T + t; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(D)); }
};

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Turns scores into probabilities, in place; returns the logarithm of the sum of their exponentials.
double softmax(std::span<double> scores) {
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double score : scores) sum += std::exp(score - maximum);
  const double lse = maximum + std::log(sum);
  for (double& score : scores) score = std::exp(score - lse);
  return lse;
}

}  // namespace

void ReferenceBackend::attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                         std::int64_t first_head, const Dropout& dropout) {
  const Layout at(qkv);
  const auto in = read(qkv);
  Values outs(out.count()), lses(lse.count());
  for (std::int64_t b = 0; b < at.B; ++b) {
    for (std::int64_t h = 0; h < at.H; ++h) {
      const Mask mask(dropout, attention_site(dropout.site, first_head + h));
      for (std::int64_t i = 0; i < at.T; ++i) {
        Values p(i + 1);
        for (std::int64_t j = 0; j <= i; ++j)
          p[j] = at.scale() * dot(&in[at.q(b, i, h)], &in[at.k(b, j, h)], at.D);
        lses[at.lse(b, i, h)] = softmax(p);
        for (std::int64_t j = 0; j <= i; ++j) {
          const double weight = p[j] * mask(b, i, j);
          for (std::int64_t d = 0; d < at.D; ++d) outs[at.out(b, i, h) + d] += weight * in[at.v(b, j, h) + d];
        }
      }
    }
  }
  write(out, outs);
  write(lse, lses);
}

void ReferenceBackend::attention_backward(const AttentionBackward& args) {
  const auto& [dqkv, dout, out, lse, qkv, first_head, dropout] = args;
  const Layout at(qkv);
  const auto in = read(qkv), outs = read(out), douts = read(dout), lses = read(lse);
  Values gradients(in.size());
  for (std::int64_t b = 0; b < at.B; ++b) {
    for (std::int64_t h = 0; h < at.H; ++h) {
      const Mask mask(dropout, attention_site(dropout.site, first_head + h));
      for (std::int64_t i = 0; i < at.T; ++i) {
        const double* q = &in[at.q(b, i, h)];
        const double* o_gradient = &douts[at.out(b, i, h)];
        // The sum over j of p dp: the part of the gradient that the softmax cancels.
        const double delta = dot(o_gradient, &outs[at.out(b, i, h)], at.D);
        for (std::int64_t j = 0; j <= i; ++j) {
          const double* k = &in[at.k(b, j, h)];
          const double kept = mask(b, i, j);
          const double p = std::exp(at.scale() * dot(q, k, at.D) - lses[at.lse(b, i, h)]);
          const double dp = kept * dot(o_gradient, &in[at.v(b, j, h)], at.D);
          const double ds = p * (dp - delta) * at.scale();
          for (std::int64_t d = 0; d < at.D; ++d) {
            gradients[at.q(b, i, h) + d] += ds * k[d];
            gradients[at.k(b, j, h) + d] += ds * q[d];
            gradients[at.v(b, j, h) + d] += p * kept * o_gradient[d];
          }
        }
      }
    }
  }
  write(dqkv, gradients);
}

void ReferenceBackend::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values,
                                        const Tensor& qkv, const CacheRows& rows) {
  const std::int64_t R = qkv.dim(0);
  const Layout at(qkv.reshaped({1, R, 3, qkv.dim(2), qkv.dim(3)}));
  const std::int64_t width = at.H * at.D;
  const auto in = read(qkv);
  auto key = read(keys), value = read(values);
  const auto position = [&](std::int64_t r) { return std::int64_t{rows.positions.as<std::int32_t>()[r]}; };
  const auto first = [&](std::int64_t r) {  // of the row's text
    return rows.texts.as<std::int32_t>()[r] * keys.dim(1) * width;
  };
  for (std::int64_t r = 0; r < R; ++r) {
    std::copy_n(&in[at.k(0, r, 0)], width, &key[first(r) + position(r) * width]);
    std::copy_n(&in[at.v(0, r, 0)], width, &value[first(r) + position(r) * width]);
  }
  write(keys, key);
  write(values, value);
  Values outs(out.count());
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t h = 0; h < at.H; ++h) {
      const std::int64_t head = first(r) + h * at.D;
      Values p(position(r) + 1);
      for (std::size_t j = 0; j < p.size(); ++j) {
        p[j] = at.scale() * dot(&in[at.q(0, r, h)], &key[head + j * width], at.D);
      }
      softmax(p);
      for (std::size_t j = 0; j < p.size(); ++j) {
        for (std::int64_t d = 0; d < at.D; ++d)
          outs[at.out(0, r, h) + d] += p[j] * value[head + j * width + d];
      }
    }
  }
  write(out, outs);
}

}  // namespace shoal
