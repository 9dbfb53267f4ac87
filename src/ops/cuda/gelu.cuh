// GELU and its slope.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/kernels.h"

namespace shoal::cuda {

struct GeluValue {
  float y, slope;
};

// x s, s = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / 2 (1 + tanh u) and keeps its
// digits where 1 + tanh u would cancel. The slope is s + x s (1 - s) 2 u'.
__device__ inline GeluValue gelu_tanh(float x) {
  constexpr float kTwice = 1.5957691216f;  // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.044715f, kLog2E = 1.4426950409f;
  const float x2 = fminf(x * x, 1e30f);  // finite, for a slope of 0 or 1
  const float s =
      fast_reciprocal(1.0f + fast_exp2(x * fmaf(-kLog2E * kTwice * kCubic, x2, -kLog2E * kTwice)));
  const float y = x * s;
  return {y, fmaf(fmaf(y, -s, y), fmaf(kTwice * 3 * kCubic, x2, kTwice), s)};
}

// x * Phi(x). The normal distribution's tail is Phi(-a) = e^(-a^2 / 2) t Q(t), t = 1 / (1 + 0.3 a): our own
// fit of Q, relative error 1.5e-7 in exact arithmetic over a in [0, 14].
__device__ inline GeluValue gelu_erf(float x) {
  constexpr float kQ[] = {0.11962927f,   0.12075439f, 0.099910808f, 0.12857023f,
                          -0.053699499f, 0.20637025f, -0.15721249f, 0.035676954f};
  constexpr float kHalfLog2E = 0.72134752f;
  const float t = fast_reciprocal(fmaf(0.3f, fabsf(x), 1.0f)), gauss = fast_exp2(-kHalfLog2E * x * x);
  float q = kQ[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) q = fmaf(q, t, kQ[i]);
  const float tail = gauss * t * q, phi = x < 0 ? tail : 1.0f - tail;
  return {x * phi, fmaf(0.398942280f * x, gauss, phi)};
}

template <Gelu kind>
__device__ GeluValue gelu(float x) {
  if constexpr (kind == Gelu::tanh) {
    return gelu_tanh(x);
  } else {
    return gelu_erf(x);
  }
}

}  // namespace shoal::cuda
