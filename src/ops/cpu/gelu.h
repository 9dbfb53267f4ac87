// GELU and its derivative on vectors.
#pragma once

#include <numbers>

#include "ops/cpu/simd.h"
#include "ops/kernels.h"

namespace shoal::cpu {

struct GeluValue {
  Vec y;   // gelu(x)
  Vec dy;  // gelu'(x)
};

// x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3), which equals x/2 (1 + tanh u) and keeps its digits
// where 1 + tanh u would cancel.
inline GeluValue gelu_tanh(Vec x) {
  constexpr float kTwice = 1.5957691216f;  // 2 sqrt(2/pi)
  constexpr float kCubic = 0.044715f;
  const Vec x2 = min(splat(1e30f), x * x);  // finite, for a slope of 0 or 1; NaN passes through
  const Vec s = 1.0f / (1.0f + exp(-kTwice * x * fma(x2, kCubic, 1.0f)));
  return {x * s, fma(x * s * (1.0f - s), kTwice * fma(x2, 3 * kCubic, 1.0f), s)};
}

// x * Phi(x). The normal distribution's tail is 1/2 erfc(z), z = |x| / sqrt 2, with erfc(z) = e^(-z^2) t
// Q(t), t = 1 / (1 + 0.4 z): our own least-squares fit of Q, relative error 2e-9 in exact arithmetic over z
// in [0, 10].
inline GeluValue gelu_erf(Vec x) {
  const Vec z = select(x < 0.0f, -x, x) * 0.707106781f;
  const Vec t = 1.0f / fma(z, 0.4f, 1.0f);
  constexpr float kQ[] = {0.22568603f, 0.22543319f,  0.2101104f,   0.15712482f, 0.17292826f,  -0.047263734f,
                          0.16662389f, -0.09253918f, -0.07803527f, 0.07847834f, -0.018546734f};
  Vec q = splat(kQ[10]);
  for (int i = 9; i >= 0; --i) q = fma(q, t, kQ[i]);
  const Vec gauss = exp(-0.5f * x * x);
  const Vec tail = 0.5f * gauss * t * q;
  const Vec phi = select(x < 0.0f, tail, 1.0f - tail);
  return {x * phi, fma(x * gauss, 0.398942280f, phi)};
}

template <Gelu kind>
inline GeluValue gelu(Vec x) {
  if constexpr (kind == Gelu::tanh) {
    return gelu_tanh(x);
  } else {
    return gelu_erf(x);
  }
}

}  // namespace shoal::cpu
