// Tests the oracle itself: every gradient against central finite differences in double, and forward results
// against known values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/error.h"
#include "ops/buffer.h"
#include "ops/reference/reference.h"

namespace shoal::test {
namespace {

class Reference : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  Backend& ops_ = *backend_;
  Side side_{ops_, DType::f64, DType::f64};
};

Values random(std::int64_t n, std::uint32_t which) { return normal_values(n, which, DType::f64); }

Dropout half_dropped() { return {.p = 0.5, .seed = 3, .site = 5, .window = {.sequence = 9}}; }

// Checks `gradient`, the derivative at `input` of L = sum of weights * forward(input).
//
// The slope over a step h is off by h^2 L'''/6 + O(h^4), so to leading order the slope over h/2 is off by a
// third of its difference from the slope over h. The bound is the whole difference, which covers O(h^4).
// Rounding in L is at most length * u * sum |weights| * max(1, |results|), with `length` operations behind
// each result and inputs of order 1; it is divided by the step, for each of four evaluations. The rounding of
// the backward pass is far smaller.
void expect_gradient(const Values& gradient, const Values& input, const Values& weights, int length,
                     const std::function<Values(const Values&)>& forward) {
  constexpr double kStep = 0x1p-9;
  const Values results = forward(input);
  const double unit = std::numeric_limits<double>::epsilon() / 2;
  const double loss_error =
      length * unit * std::abs(weights).sum() * std::max(1.0, static_cast<double>(std::abs(results).max()));
  Values point = input;
  const auto slope = [&](std::size_t i, double step) {
    point[i] = input[i] + step;
    const double above = (weights * forward(point)).sum();
    point[i] = input[i] - step;
    const double below = (weights * forward(point)).sum();
    point[i] = input[i];
    return (above - below) / (2 * step);
  };
  ASSERT_EQ(gradient.size(), input.size());
  for (std::size_t i = 0; i < input.size(); ++i) {
    const double coarse = slope(i, kStep), fine = slope(i, kStep / 2);
    EXPECT_NEAR(gradient[i], fine, std::abs(coarse - fine) + 4 * loss_error / kStep) << "element " << i;
  }
}

TEST_F(Reference, LinearGradients) {
  const std::int64_t R = 4, K = 5, N = 3;
  const Values x = random(R * K, 1), w = random(N * K, 2), bias = random(N, 3), dy = random(R * N, 4);
  const auto forward = [&](const Values& x_, const Values& w_, const Values& bias_) {
    const Buffer y = side_.compute({R, N});
    ops_.linear_forward(y, side_.compute({R, K}, x_), side_.compute({N, K}, w_), side_.compute({N}, bias_));
    return y.values();
  };
  const Buffer dx = side_.compute({R, K}), dw = side_.full({N, K}), dbias = side_.full({N});
  ops_.linear_backward_input(dx, side_.compute({R, N}, dy), side_.compute({N, K}, w));
  ops_.linear_backward_weight(dw, dbias, side_.compute({R, N}, dy), side_.compute({R, K}, x), false);
  expect_gradient(dx.values(), x, dy, 2 * K, [&](const Values& at) { return forward(at, w, bias); });
  expect_gradient(dw.values(), w, dy, 2 * K, [&](const Values& at) { return forward(x, at, bias); });
  expect_gradient(dbias.values(), bias, dy, 2 * K, [&](const Values& at) { return forward(x, w, at); });
}

// The forward result is the sum over shards of the vocabulary. Each shard has the gradient of all positions.
TEST_F(Reference, EmbeddingGradients) {
  const std::int64_t B = 2, T = 3, V = 7, P = 5, C = 3;
  const std::pair<std::int64_t, std::int64_t> shards[] = {{0, 2}, {2, 4}, {6, 1}};  // first class, classes
  Dropout dropout = half_dropped();
  dropout.window.first_position = 1;
  const Values wte = random(V * C, 1), wpe = random(P * C, 2), dout = random(B * T * C, 3);
  const Buffer tokens = side_.ints({B, T}, {2, 5, 5, 0, 3, 6});
  const auto forward = [&](const Values& wte_, const Values& wpe_) {
    const Buffer whole = side_.compute({V, C}, wte_), out = side_.full({B, T, C});
    Values sum(static_cast<std::size_t>(B * T * C));
    for (const auto& [first, classes] : shards) {
      ops_.embedding_forward(out, tokens, Tensor(whole).row_range(first, classes),
                             side_.compute({P, C}, wpe_), first, side_.at_step(dropout));
      sum += out.values();
    }
    return sum;
  };
  const Buffer dwte = side_.full({V, C});
  for (const auto& [first, classes] : shards) {
    const Buffer dwpe = side_.full({P, C});
    ops_.embedding_backward(Tensor(dwte).row_range(first, classes), dwpe, side_.full({B, T, C}, dout), tokens,
                            first, side_.at_step(dropout));
    expect_gradient(dwpe.values(), wpe, dout, 3, [&](const Values& at) { return forward(wte, at); });
  }
  expect_gradient(dwte.values(), wte, dout, 3, [&](const Values& at) { return forward(at, wpe); });
}

TEST_F(Reference, LayerNormGradients) {
  const std::int64_t R = 3, C = 6;
  const Values x = random(R * C, 1), gamma = random(C, 2), beta = random(C, 3), dy = random(R * C, 4);
  const auto forward = [&](const Values& x_, const Values& gamma_, const Values& beta_) {
    const Buffer y = side_.compute({R, C}), mean = side_.full({R}), rstd = side_.full({R});
    ops_.layernorm_forward(y, mean, rstd, side_.full({R, C}, x_), side_.compute({C}, gamma_),
                           side_.compute({C}, beta_));
    return std::tuple(y.values(), mean.values(), rstd.values());
  };
  const auto [y, mean, rstd] = forward(x, gamma, beta);
  const Buffer dx = side_.full({R, C}), dgamma = side_.full({C}), dbeta = side_.full({C});
  ops_.layernorm_backward({.dx = dx,
                           .dgamma = dgamma,
                           .dbeta = dbeta,
                           .dy = side_.compute({R, C}, dy),
                           .x = side_.full({R, C}, x),
                           .gamma = side_.compute({C}, gamma),
                           .mean = side_.full({R}, mean),
                           .rstd = side_.full({R}, rstd)});
  const auto y_of = [&](const auto&... inputs) { return std::get<0>(forward(inputs...)); };
  expect_gradient(dx.values(), x, dy, 6 * C, [&](const Values& at) { return y_of(at, gamma, beta); });
  expect_gradient(dgamma.values(), gamma, dy, 6 * C, [&](const Values& at) { return y_of(x, at, beta); });
  expect_gradient(dbeta.values(), beta, dy, 6 * C, [&](const Values& at) { return y_of(x, gamma, at); });
}

TEST_F(Reference, ResidualGradient) {
  const std::int64_t B = 2, T = 3, C = 20;
  const Values residual = random(B * T * C, 1), branch = random(B * T * C, 2), dout = random(B * T * C, 3);
  const Buffer dbranch = side_.compute({B, T, C});
  ops_.residual_backward(dbranch, side_.full({B, T, C}, dout), side_.at_step(half_dropped()));
  expect_gradient(dbranch.values(), branch, dout, 3, [&](const Values& at) {
    const Buffer out = side_.full({B, T, C});
    ops_.residual_forward(out, side_.full({B, T, C}, residual), side_.compute({B, T, C}, at),
                          side_.at_step(half_dropped()));
    return out.values();
  });
}

TEST_F(Reference, GeluGradients) {
  const std::int64_t n = 50;
  const Values x = random(n, 1) * 2.0, dy = random(n, 2);
  for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
    const Buffer dx = side_.compute({n});
    ops_.gelu_backward(dx, side_.compute({n}, dy), side_.compute({n}, x), kind);
    expect_gradient(dx.values(), x, dy, 10, [&](const Values& at) {
      const Buffer y = side_.compute({n});
      ops_.gelu_forward(y, side_.compute({n}, at), kind);
      return y.values();
    });
  }
}

TEST_F(Reference, AttentionGradient) {
  const std::int64_t B = 2, T = 5, H = 2, D = 3;
  const Values qkv = random(B * T * 3 * H * D, 1), dout = random(B * T * H * D, 2);
  for (const Dropout& dropout : {Dropout{}, half_dropped()}) {
    const auto forward = [&](const Values& qkv_) {
      const Buffer out = side_.compute({B, T, H, D}), lse = side_.full({B, H, T});
      ops_.attention_forward(out, lse, side_.compute({B, T, 3, H, D}, qkv_), 1, side_.at_step(dropout));
      return std::pair(out.values(), lse.values());
    };
    const auto [out, lse] = forward(qkv);
    const Buffer dqkv = side_.compute({B, T, 3, H, D});
    ops_.attention_backward({.dqkv = dqkv,
                             .dout = side_.compute({B, T, H, D}, dout),
                             .out = side_.compute({B, T, H, D}, out),
                             .lse = side_.full({B, H, T}, lse),
                             .qkv = side_.compute({B, T, 3, H, D}, qkv),
                             .first_head = 1,
                             .dropout = side_.at_step(dropout)});
    expect_gradient(dqkv.values(), qkv, dout, 4 * (D + T),
                    [&](const Values& at) { return forward(at).first; });
  }
}

TEST_F(Reference, CrossEntropyGradient) {
  const std::int64_t R = 4, V = 7, valid = 6;
  const float scale = 0.25f;
  const Values logits = random(R * V, 1);
  const Buffer targets = side_.ints({R}, {0, 5, -1, 3});
  const auto forward = [&](const Values& logits_) {
    const Buffer maximum = side_.full({R}), exp_sum = side_.full({R}), target_logit = side_.full({R}),
                 argmax = side_.ints({R}), losses = side_.full({R});
    ops_.cross_entropy_stats({.logits = side_.full({R, V}, logits_),
                              .targets = targets,
                              .valid = valid,
                              .maximum = maximum,
                              .exp_sum = exp_sum,
                              .target_logit = target_logit,
                              .argmax = argmax});
    ops_.cross_entropy_loss({.targets = targets,
                             .maximum = maximum,
                             .exp_sum = exp_sum,
                             .target_logit = target_logit,
                             .losses = losses});
    return std::tuple(losses.values(), maximum.values(), exp_sum.values());
  };
  const auto [losses, maximum, exp_sum] = forward(logits);
  EXPECT_EQ(losses[2], 0);
  const Buffer dlogits = side_.compute({R, V});
  ops_.cross_entropy_backward({.logits = side_.full({R, V}, logits),
                               .targets = targets,
                               .valid = valid,
                               .maximum = side_.full({R}, maximum),
                               .exp_sum = side_.full({R}, exp_sum),
                               .dlogits = dlogits,
                               .scale = scale});
  expect_gradient(dlogits.values(), logits, Values(scale, R), 2 * V,
                  [&](const Values& at) { return std::get<0>(forward(at)); });
}

// --- forward results against known values

TEST_F(Reference, LayerNormOfKnownRow) {
  const Buffer y = side_.compute({1, 4}), mean = side_.full({1}), rstd = side_.full({1});
  ops_.layernorm_forward(y, mean, rstd, side_.full({1, 4}, {1, 1, 5, 5}), side_.compute({4}, {1, 2, 3, 4}),
                         {});
  EXPECT_EQ(mean.values()[0], 3);
  EXPECT_DOUBLE_EQ(rstd.values()[0], 1 / std::sqrt(4 + 1e-5));
  EXPECT_DOUBLE_EQ(y.values()[1], -4 / std::sqrt(4 + 1e-5));
  EXPECT_DOUBLE_EQ(y.values()[3], 8 / std::sqrt(4 + 1e-5));
}

TEST_F(Reference, GeluOfOne) {
  const Buffer y = side_.compute({2}), x = side_.compute({2}, {1, -1});
  ops_.gelu_forward(y, x, Gelu::erf);
  EXPECT_NEAR(y.values()[0], 0.8413447460685429, 1e-15);  // the normal distribution function at 1
  EXPECT_NEAR(y.values()[1], 0.8413447460685429 - 1, 1e-15);
  ops_.gelu_forward(y, x, Gelu::tanh);
  EXPECT_NEAR(y.values()[0], 0.8411919906082768, 1e-15);
}

TEST_F(Reference, AttentionOfEqualKeysIsTheRunningMean) {
  const std::int64_t T = 4;
  const Buffer qkv = side_.compute({1, T, 3, 1, 1}, {5, 0, 1, 6, 0, 2, 7, 0, 3, 8, 0, 4});
  const Buffer out = side_.compute({1, T, 1, 1}), lse = side_.full({1, 1, T});
  ops_.attention_forward(out, lse, qkv, 0, {});
  for (std::size_t t = 0; t < 4; ++t) {
    EXPECT_DOUBLE_EQ(out.values()[t], (static_cast<double>(t) + 2) / 2);
    EXPECT_DOUBLE_EQ(lse.values()[t], std::log(static_cast<double>(t) + 1));
  }
}

TEST_F(Reference, CrossEntropyOfEqualLogitsIsLogOfClasses) {
  const Buffer maximum = side_.full({1}), exp_sum = side_.full({1}), target_logit = side_.full({1}),
               argmax = side_.ints({1}), losses = side_.full({1}), targets = side_.ints({1}, {12});
  ops_.cross_entropy_stats({.logits = side_.full({1, 5}, {2, 2, 2, 2, 9}),
                            .targets = targets,
                            .first_class = 10,
                            .valid = 4,
                            .maximum = maximum,
                            .exp_sum = exp_sum,
                            .target_logit = target_logit,
                            .argmax = argmax});
  ops_.cross_entropy_loss({.targets = targets,
                           .maximum = maximum,
                           .exp_sum = exp_sum,
                           .target_logit = target_logit,
                           .losses = losses});
  EXPECT_DOUBLE_EQ(losses.values()[0], std::log(4.0));
  EXPECT_EQ(argmax.values()[0], 10);
}

TEST_F(Reference, FirstAdamWStepMovesByTheLearningRate) {
  const Buffer w = side_.full({2}, {1, -2}), m = side_.full({2}), v = side_.full({2});
  const Buffer grads = side_.full({2}, {0.5, -3}), compute{ops_, DType::bf16, {2}};
  const AdamWScalars scalars{.lr = 0.125f, .correction1 = 0.25f, .correction2 = 0.5f, .commit = 1};
  const AdamWSettings settings{
      .scalars = &scalars, .beta1 = 0.75f, .beta2 = 0.5f, .eps = 0, .weight_decay = 0.5f};
  ops_.adamw({.weights = w, .compute = compute, .m = m, .v = v, .grads = grads}, settings);
  EXPECT_DOUBLE_EQ(w.values()[0], 0.9375 - 0.125);
  EXPECT_DOUBLE_EQ(w.values()[1], -1.875 + 0.125);
  EXPECT_DOUBLE_EQ(m.values()[1], -0.75);
  EXPECT_DOUBLE_EQ(v.values()[1], 4.5);
  EXPECT_EQ(compute.values()[0], rounded(w.values()[0], DType::bf16));
}

TEST_F(Reference, RejectsTypesWithoutKernels) {
  const Buffer half{ops_, DType::f16, {2}}, out = side_.full({2});
  EXPECT_THROW(ops_.convert(out, half), Error);
}

// The oracle has no graphs, so GraphReplay must call it every time.
TEST_F(Reference, CapturesNothing) { EXPECT_FALSE(ops_.can_capture()); }

}  // namespace
}  // namespace shoal::test
