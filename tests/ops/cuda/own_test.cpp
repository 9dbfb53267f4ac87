// Tests of the cuda backend alone: shapes of real models, fast kernels against plain ones, the same bits
// every time, and whole models.
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/trainee.h"
#include "ops/conformance.h"
#include "ops/cuda/distance.h"

namespace shoal::test {
namespace {

using Bytes = std::vector<std::byte>;

class Cuda : public testing::TestWithParam<DType> {
 protected:
  Side gpu() const { return {*gpu_, GetParam()}; }
  Side cpu() const { return {*cpu_, GetParam()}; }
  Values values(std::int64_t n, std::uint32_t which) const { return normal_values(n, which, GetParam()); }

  std::shared_ptr<Backend> gpu_ = backend_under_test(1);
  std::unique_ptr<Backend> cpu_ = make_cpu_backend();
};

// The roundings in a product of random operands are a random walk, far smaller than gamma(n): about sqrt(n)
// of them, plus the rounding of the result. The bound is four times that, since both backends round.
TEST_P(Cuda, ProductsOfRealModels) {
  const std::int64_t R = 512;
  for (const auto& [K, N] : {std::pair{768, 2304}, {768, 768}, {3072, 768}, {384, 1536}, {1600, 4800}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", R, K, N));
    const Values x = values(R * K, 1), w = values(std::int64_t{N} * K, 2), bias = values(N, 3),
                 dy = values(R * N, 4);
    const auto products = [&](const Side& side) {
      const Buffer y = side.compute({R, N}), dx = side.compute({R, K}), dw = side.full({N, K}),
                   db = side.full({N}), xs = side.compute({R, K}, x), ws = side.compute({N, K}, w),
                   dys = side.compute({R, N}, dy);
      side.backend.linear_forward(y, xs, ws, side.compute({N}, bias));
      side.backend.linear_backward_input(dx, dys, ws);
      side.backend.linear_backward_weight(dw, db, dys, xs, false);
      return std::array{y.values(), dx.values(), dw.values(), db.values()};
    };
    const auto actual = products(gpu()), expected = products(cpu());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double stored = i < 2 ? unit_roundoff(GetParam()) : kUnit;
      EXPECT_LE(distance(actual[i], expected[i]), 4 * (std::sqrt(3072.0) * kUnit + stored)) << "result " << i;
    }
  }
}

// Products of few rows, whose bits do not depend on the other rows: of short and long rows, of many columns,
// and of sizes that leave vectors incomplete.
TEST_P(Cuda, RowsOfAProductStandAlone) {
  for (const auto& [K, N] : {std::pair{24, 40}, {35, 21}, {2056, 20}, {2051, 3}, {16, 8200}}) {
    const Values w = values(std::int64_t{N} * K, 1), x = values(std::int64_t{8} * K, 2), bias = values(N, 3);
    const auto product = [&](const Side& side, int first, int rows) {
      const Values some =
          x[std::slice(static_cast<std::size_t>(first * K), static_cast<std::size_t>(rows * K), 1)];
      const Buffer y = side.compute({rows, N}), hidden = side.compute({rows, N}),
                   plain = side.full({rows, N}), xs = side.compute({rows, K}, some),
                   ws = side.compute({N, K}, w), biases = side.compute({N}, bias);
      side.backend.linear_gelu_forward(y, hidden, xs, ws, biases, Gelu::erf);
      side.backend.linear_forward(plain, xs, ws, {});
      return std::array{y.values(), hidden.values(), plain.values()};
    };
    const auto expected = product(cpu(), 0, 8), all = product(gpu(), 0, 8);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double stored = i < 2 ? unit_roundoff(GetParam()) : kUnit;
      EXPECT_LE(distance(all[i], expected[i]), 4 * (std::sqrt(K) * kUnit + 2 * stored)) << "result " << i;
    }
    for (const auto& [first, rows] : {std::pair{7, 1}, {2, 5}}) {
      const auto some = product(gpu(), first, rows);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::slice same(static_cast<std::size_t>(first * N), static_cast<std::size_t>(rows * N), 1);
        EXPECT_TRUE((some[i] == Values(all[i][same])).min())
            << K << " x " << N << ", result " << i << ", " << rows << " rows from " << first;
      }
    }
  }
}

class CudaGelu : public Cuda {
 protected:
  // Without timing, GPUs that have it take our own kernel.
  void expect_products(int R, int K, int N) {
    const auto untimed = make_cuda_backend({.tune = false});
    for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}, {}", R, K, N, kind == Gelu::tanh ? "tanh" : "erf"));
      const double scale = 1 / std::sqrt(K);
      const auto weights = [&](std::uint32_t which) {
        return normal_values(std::int64_t{K} * N, which, GetParam(), 0, scale);
      };
      const Values x = values(std::int64_t{R} * K, 1), up = weights(2), down = weights(3),
                   bias = values(N, 4);
      const auto products = [&](const Side& side) {
        const Buffer y = side.compute({R, N}), plain = side.compute({R, N}), hidden = side.compute({R, N}),
                     dhidden = side.compute({R, N}), xs = side.compute({R, K}, x),
                     ws = side.compute({N, K}, up), sums = side.full({N}, bias);
        side.backend.linear_gelu_forward(y, hidden, xs, ws, side.compute({N}, bias), kind);
        side.backend.linear_gelu_forward(plain, hidden, xs, ws, {}, kind);
        const bool sum = side.backend.gelu_backward_sums();
        side.backend.linear_gelu_backward(dhidden, xs, side.compute({K, N}, down), hidden, kind,
                                          sum ? sums : Tensor{});
        if (!sum) side.backend.linear_backward_weight(side.full({N, K}), sums, dhidden, xs, true);
        return std::array{y.values(), plain.values(), hidden.values(), dhidden.values(), sums.values()};
      };
      const auto actual = products({*untimed, GetParam()}), expected = products(cpu());
      for (std::size_t i = 0; i < actual.size(); ++i) {
        // The bound is twice that of products: an error of hidden becomes one of its GELU or of the slope's
        // argument.
        EXPECT_LE(distance(actual[i], expected[i]),
                  8 * (std::sqrt(1024.0) * kUnit + unit_roundoff(GetParam())))
            << "result " << i;
      }
    }
  }
};

TEST_P(CudaGelu, ProductsOfRealModels) {
  expect_products(1024, 768, 3072);
  expect_products(2048, 384, 1536);
}

// Tiles that are not full, of rows, columns and what is summed.
TEST_P(CudaGelu, ProductsOfOddSizes) {
  expect_products(1111, 40, 200);
  expect_products(1030, 680, 72);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaGelu, kComputeTypes);

// Heads of 64 channels and several tiles, with and without a partial tile at the end.
TEST_P(Cuda, FastAndPlainAttentionAgree) {
  const auto plain = make_cuda_backend({.attention = AttentionKind::plain});
  const std::int64_t B = 2, H = 3, D = 64;
  for (const std::int64_t T : {1024, 1000, 191, 129}) {
    for (const double p : {0.0, 0.1}) {
      SCOPED_TRACE(fmt::format("T {}, dropout {}", T, p));
      Dropout dropout = some_dropout(T);
      dropout.p = p;
      const Values qkv = values(B * T * 3 * H * D, 1), dout = values(B * T * H * D, 2);
      const auto run = [&](const Side& side) {
        const Buffer out = side.compute({B, T, H, D}), lse = side.full({B, H, T}),
                     dqkv = side.compute({B, T, 3, H, D}), in = side.compute({B, T, 3, H, D}, qkv);
        side.backend.attention_forward(out, lse, in, 1, side.at_step(dropout));
        side.backend.attention_backward({.dqkv = dqkv,
                                         .dout = side.compute({B, T, H, D}, dout),
                                         .out = out,
                                         .lse = lse,
                                         .qkv = in,
                                         .first_head = 1,
                                         .dropout = side.at_step(dropout)});
        return std::array{out.values(), lse.values(), dqkv.values()};
      };
      const auto fast = run(gpu()), slow = run({*plain, GetParam()});
      // Probabilities and their gradients are rounded to the type once, and the results once more.
      for (std::size_t i = 0; i < fast.size(); ++i) {
        EXPECT_LE(distance(fast[i], slow[i]), 4 * unit_roundoff(GetParam()) + 1e-5) << "result " << i;
      }
    }
  }
}

// GPUs of compute capability 8.6, 8.9 and 12.0 have 99 KiB of shared memory for a block.
TEST_P(Cuda, WideHeadsFitSmallSharedMemory) {
  if (cuda_devices().front().name != "emulated GPU") GTEST_SKIP() << "a GPU's shared memory is given";
  const std::int64_t T = 41, H = 1;
  for (const std::int64_t D : {121, 192}) {
    const Values qkv = values(T * 3 * H * D, 1), dout = values(T * H * D, 2);
    const Dropout dropout = some_dropout(T);
    const auto run = [&](int shared) {
      ::setenv("SHOAL_EMULATED_SHARED", std::to_string(shared << 10).c_str(), 1);
      const Side side = gpu();
      const Buffer out = side.compute({1, T, H, D}), lse = side.full({1, H, T}),
                   dqkv = side.compute({1, T, 3, H, D}), in = side.compute({1, T, 3, H, D}, qkv);
      side.backend.attention_forward(out, lse, in, 0, side.at_step(dropout));
      side.backend.attention_backward({.dqkv = dqkv,
                                       .dout = side.compute({1, T, H, D}, dout),
                                       .out = out,
                                       .lse = lse,
                                       .qkv = in,
                                       .dropout = side.at_step(dropout)});
      ::unsetenv("SHOAL_EMULATED_SHARED");
      return std::array{out.values(), lse.values(), dqkv.values()};
    };
    const auto small = run(99), large = run(227);
    for (std::size_t i = 0; i < small.size(); ++i) {
      EXPECT_LE(distance(small[i], large[i]), 2 * unit_roundoff(GetParam()) + 1e-5)
          << "result " << i << ", " << D;
    }
  }
}

// A GPU processes many rows at once, so a sum without a fixed order is noticed here.
TEST_P(Cuda, TheSameBitsEveryTime) {
  const std::int64_t B = 4, T = 513, C = 768, V = 1003, H = 12, D = 64, R = B * T;
  const Dropout dropout = some_dropout(T);
  const Side side = gpu();
  const Buffer tokens = side.ints({B, T}, random_integers(R, 1, 50)),  // many of each
      wte = side.compute({V, C}, values(V * C, 2)), wpe = side.compute({T, C}, values(T * C, 3)),
               upstream = side.full({B, T, C}, normal_values(R * C, 4)),
               qkv = side.compute({B, T, 3, H, D}, values(3 * R * C, 5)),
               scale = side.compute({C}, values(C, 6)), logits = side.full({R, V}, normal_values(R * V, 7)),
               targets = side.ints({R}, random_integers(R, 8, V));
  const auto run = [&] {
    const Buffer stream = side.full({B, T, C}), dwte = side.full({V, C}), dwpe = side.full({T, C}),
                 branch = side.compute({B, T, C}), y = side.compute({R, C}), mean = side.full({R}),
                 rstd = side.full({R}), dscale = side.full({C}), dshift = side.full({C}),
                 dx = side.full({R, C}), out = side.compute({B, T, H, D}), lse = side.full({B, H, T}),
                 dqkv = side.compute({B, T, 3, H, D}), dw = side.full({C, C}), db = side.full({C}),
                 maximum = side.full({R}), sum = side.full({R}), target = side.full({R}),
                 argmax = side.ints({R}), dlogits = side.compute({R, V}),
                 total{side.backend, DType::f64, {1}};
    auto& ops = side.backend;
    ops.embedding_forward(stream, tokens, wte, wpe, 0, side.at_step(dropout));
    ops.embedding_backward(dwte, dwpe, upstream, tokens, 0, side.at_step(dropout));
    ops.residual_backward(branch, upstream, side.at_step(dropout));
    ops.layernorm_forward(y, mean, rstd, stream, scale, scale);
    ops.layernorm_backward({.dx = dx,
                            .dgamma = dscale,
                            .dbeta = dshift,
                            .dy = Tensor(branch).reshaped({R, C}),
                            .x = Tensor(stream).reshaped({R, C}),
                            .gamma = scale,
                            .mean = mean,
                            .rstd = rstd});
    ops.attention_forward(out, lse, qkv, 0, side.at_step(dropout));
    ops.attention_backward(
        {.dqkv = dqkv, .dout = branch, .out = out, .lse = lse, .qkv = qkv, .dropout = side.at_step(dropout)});
    ops.linear_backward_weight(dw, db, Tensor(branch).reshaped({R, C}), y, false);
    ops.cross_entropy_stats({.logits = logits,
                             .targets = targets,
                             .valid = V,
                             .maximum = maximum,
                             .exp_sum = sum,
                             .target_logit = target,
                             .argmax = argmax});
    ops.cross_entropy_backward({.logits = logits,
                                .targets = targets,
                                .valid = V,
                                .maximum = maximum,
                                .exp_sum = sum,
                                .dlogits = dlogits,
                                .scale = 0.1f});
    ops.sum_squares(total, upstream);
    return std::vector{stream.bytes(),  dwte.bytes(),   dwpe.bytes(),   branch.bytes(), y.bytes(),
                       dx.bytes(),      dscale.bytes(), dshift.bytes(), out.bytes(),    lse.bytes(),
                       dqkv.bytes(),    dw.bytes(),     db.bytes(),     sum.bytes(),    argmax.bytes(),
                       dlogits.bytes(), total.bytes()};
  };
  const auto first = run();
  for (int again = 0; again < 3; ++again) {
    const auto next = run();
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(next[i] == first[i]) << "result " << i;
  }
}

// Norms of rows that a warp's registers hold, of longer ones, and of more rows than a block has.
TEST_P(Cuda, NormsSumTheirGradient) {
  const std::shared_ptr<Backend> backend = make_cuda_backend({.ordered = false});
  ASSERT_TRUE(backend->norm_backward_sums());
  for (const DType stream : {DType::f32, GetParam()}) {
    for (const auto& [R, C] : {std::pair{1, 4}, {10, 3}, {141, 20}, {4, 768}, {29, 1600}, {2, 2052}})
      expect_sums_of_gradient({*backend, GetParam(), DType::f32, stream}, R, C);
  }
}

// Gradients of a small model and its loss after some steps. Every operation rounds to the compute type once;
// there are fewer than 20 in a row.
TEST_P(Cuda, AWholeModelFollowsTheCpu) {
  GptConfig config{.n_layer = 2, .n_head = 2, .n_embd = 128, .block_size = 96, .vocab_size = 211};
  const TraineeOptions options{.compute = GetParam(), .micro_batch = 2, .micro_batches = 2};
  TraineeOptions narrow = options;  // the residual stream and the gradients have the compute type as well
  narrow.stream = narrow.gradients = GetParam();
  const double rounding = 20 * (GetParam() == DType::bf16 ? unit_roundoff(DType::bf16) : 128 * kUnit);
  std::vector runs = {std::pair{options, true}, {options, false}};
  if (GetParam() != DType::f32) runs.insert(runs.end(), {{narrow, true}, {narrow, false}});
  for (const auto& [of_gpu, ordered] : runs) {
    config.dropout =
        ordered ? 0.1 : 0.0;  // without dropout, and where order is free, norms sum their gradients
    Trainee on_gpu(make_cuda_backend({.ordered = ordered}), config, of_gpu),
        on_cpu(make_cpu_backend(), config, options);
    for (int step = 0; step < 2; ++step) {
      const Tokens batch = random_tokens(config, 4, static_cast<std::uint32_t>(step));
      const double loss = on_gpu.train(batch, step, 1e-3), expected = on_cpu.train(batch, step, 1e-3);
      EXPECT_NEAR(loss, expected, rounding * expected) << "step " << step;
      EXPECT_NEAR(on_gpu.gradient_norm(), on_cpu.gradient_norm(), rounding * on_cpu.gradient_norm());
      if (step > 0) continue;
      const auto actual = on_gpu.gradients(), wanted = on_cpu.gradients();
      for (std::size_t i = 0; i < actual.size(); ++i) {
        EXPECT_LE(distance(actual[i].values, wanted[i].values), rounding) << actual[i].name;
      }
    }
  }
}

// A recomputed activation comes from other ops than a kept one: norms without the addition before them, and a
// branch's gradient without a norm before it. (Epilogues with GELU are excluded: they take GELU of the sum
// that `hidden` is rounded from.)
TEST_P(Cuda, RecomputeGivesTheSameBits) {
  for (const auto& [dropout, ordered] : {std::pair{0.0, true}, {0.0, false}, {0.1, true}}) {
    const GptConfig config{
        .n_layer = 3, .n_head = 2, .n_embd = 36, .block_size = 24, .vocab_size = 61, .dropout = dropout};
    const auto run = [&](Recompute recompute) {
      Trainee trainee(make_cuda_backend({.tune = false, .ordered = ordered}), config,
                      {.compute = GetParam(), .micro_batch = 2, .micro_batches = 2, .recompute = recompute});
      for (int step = 0; step < 2; ++step) {
        trainee.train(random_tokens(config, 4, static_cast<std::uint32_t>(step)), step, 1e-3);
      }
      return trainee.state_bits();
    };
    const auto expected = run(Recompute::none);
    for (const auto recompute : {Recompute::gelu, Recompute::light, Recompute::block}) {
      EXPECT_TRUE(run(recompute) == expected) << static_cast<int>(recompute) << ", dropout " << dropout;
    }
  }
}

// A captured graph reads the scalars that are in the backend's memory when it is replayed.
TEST_P(Cuda, AGraphReadsScalarsInDeviceMemory) {
  const std::int64_t B = 2, T = 16, C = 64, n = B * T * C;
  const Side side = gpu();
  const Values branch_values = values(n, 1);
  const Buffer branch = side.compute({B, T, C}, branch_values), w = side.full({n}, normal_values(n, 2)),
               m = side.full({n}), v = side.full({n}), grads = side.full({n}, normal_values(n, 3)),
               zeros = side.full({B, T, C}), out = side.full({B, T, C});
  Scalar<std::uint32_t> step(side.backend, 0);
  Scalar<AdamWScalars> scalars(side.backend, {});
  Dropout dropout = some_dropout(T);
  dropout.step = step.get();
  const auto work = [&] {
    side.backend.residual_forward(out, zeros, branch, dropout);
    side.backend.adamw({.weights = w, .m = m, .v = v, .grads = grads},
                       {.scalars = scalars.get(), .weight_decay = 0.1f});
  };
  side.backend.begin_capture();
  work();
  const auto graph = side.backend.end_capture();
  EXPECT_TRUE((m.values() == 0.0).min()) << "captured, not executed";

  const auto two_steps = [&](const auto& run) {
    side.backend.convert(w, side.full({n}, normal_values(n, 2)));
    side.backend.zero(m);
    side.backend.zero(v);
    std::vector<Values> results;
    const auto one_step = [&](std::uint32_t number, const AdamWScalars& now) {
      step.set(number);
      scalars.set(now);
      run();
      for (const auto* x : {&out, &w, &m, &v}) results.push_back(x->values());
    };
    one_step(5, {0.1f, 0.1f, 0.05f, 1});
    one_step(6, {0.2f, 0.19f, 0.0975f, 1});
    return results;
  };
  const auto expected = two_steps(work), actual = two_steps([&] { graph->replay(); });
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE((actual[i] == expected[i]).min()) << i;
  EXPECT_FALSE((actual[0] == actual[4]).min()) << "another step has another mask";
}

// The results of the loss of some rows.
struct LossResults {
  Buffer losses, maximum, sum, target, argmax;

  LossResults(const Side& side, std::int64_t rows)
      : losses(side.full({rows})),
        maximum(side.full({rows})),
        sum(side.full({rows})),
        target(side.full({rows})),
        argmax(side.ints({rows})) {}
  CrossEntropy of(const Buffer& logits, const Buffer& targets, std::int64_t valid,
                  const Buffer& dlogits) const {
    return {.logits = logits,
            .targets = targets,
            .valid = valid,
            .maximum = maximum,
            .exp_sum = sum,
            .target_logit = target,
            .argmax = argmax,
            .losses = losses,
            .dlogits = dlogits,
            .scale = 0.5f};
  }
};

// Logits may have the type of the products: the results are the same as for equal numbers in float32.
TEST_P(Cuda, LogitsOfEitherTypeAreTheSame) {
  for (const std::int64_t V : {1003, 1024}) {
    const std::int64_t R = 5, valid = V - 2;
    const Values numbers = values(R * V, 1), wanted = random_integers(R, 2, valid);
    const Side side = gpu();
    const auto run = [&](const Buffer& logits) {
      const LossResults to(side, R);
      const Buffer targets = side.ints({R}, wanted), dlogits = side.compute({R, V});
      side.backend.cross_entropy_stats(to.of(logits, targets, valid, dlogits));
      side.backend.cross_entropy_backward(to.of(logits, targets, valid, dlogits));
      side.backend.cross_entropy_backward(to.of(logits, targets, valid, logits));
      const Values in_place = rounded(logits.values(), GetParam());
      EXPECT_TRUE((in_place == dlogits.values()).min());
      return std::vector{to.target.values(), to.argmax.values(), dlogits.values(), to.maximum.values(),
                         to.sum.values()};
    };
    const auto narrow = run(side.compute({R, V}, numbers)), wide = run(side.full({R, V}, numbers));
    for (std::size_t i = 0; i + 1 < wide.size(); ++i) {
      EXPECT_LE(std::abs(narrow[i] - wide[i]).max(), i == 2 ? 2 * unit_roundoff(GetParam()) : 0.0) << i;
    }
    // The numbers are distributed to threads in other pieces, so they are added in another order.
    EXPECT_LE(std::abs(narrow.back() - wide.back()).max(), gamma(V) * wide.back().max());
  }
}

// Rows that fit in shared memory, with few and many columns, and rows that do not.
TEST_P(Cuda, TheLossInOneOpIsItsParts) {
  for (const std::int64_t V : {1003, 1024, 5008, 50304}) {
    const std::int64_t R = 3, valid = V - 3;
    const Side side = gpu();
    Values wanted = random_integers(R, 2, valid);
    wanted[1] = -1;
    const Values numbers = values(R * V, 1);
    const auto run = [&](bool one_op, bool in_place) {
      const Buffer logits = side.compute({R, V}, numbers), separate = side.compute({R, V}),
                   targets = side.ints({R}, wanted);
      const LossResults to(side, R);
      const Buffer& dlogits = in_place ? logits : separate;
      const CrossEntropy loss = to.of(logits, targets, valid, dlogits);
      one_op ? side.backend.cross_entropy_train(loss) : side.backend.Backend::cross_entropy_train(loss);
      return std::vector{dlogits.bytes(), to.losses.bytes(), to.maximum.bytes(),
                         to.sum.bytes(),  to.target.bytes(), to.argmax.bytes()};
    };
    const auto parts = run(false, false);
    EXPECT_EQ(run(true, false), parts) << V;
    EXPECT_EQ(run(true, true), parts) << V << ", in place";
  }
}

// Equal maxima, numbers that are not finite, and numbers so large that their neighbours are far away, in rows
// that are loaded by vectors and by elements. What lies behind the classes has no effect.
TEST_P(Cuda, ExtremeLogits) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  struct Row {
    double most, others;              // logits
    std::vector<std::int64_t> where;  // of the largest
    double poison, exp_sum;           // poison is logit 3, if it is not 0
  };
  for (const std::int64_t V : {1003, 1024, 5003, 5008}) {
    const std::int64_t valid = V - 2;
    const auto classes = static_cast<double>(valid);
    const std::vector<Row> rows{{2, 0, {18, 34, 530}, 0, 3 + (classes - 3) * std::exp(-2.0)},
                                {2, 0, {531, 532, 540}, 0, 3 + (classes - 3) * std::exp(-2.0)},
                                {2, 0, {valid - 1}, 0, 1 + (classes - 1) * std::exp(-2.0)},
                                {1, 0, {5}, nan, nan},
                                {infinity, 0, {9}, 0, nan},
                                {3, -infinity, {700}, 0, 1},
                                {-infinity, -infinity, {0}, 0, 0},
                                {0x1p40, 0, {600}, 0, 1},
                                {-0x1p40, -0x1p40, {0}, 0, classes}};
    const auto R = static_cast<std::int64_t>(rows.size());
    Values numbers(nan, R * V);
    for (std::int64_t r = 0; r < R; ++r) {
      const Row& row = rows[static_cast<std::size_t>(r)];
      for (std::int64_t c = 0; c < valid; ++c) numbers[r * V + c] = row.others;
      for (const std::int64_t c : row.where) numbers[r * V + c] = row.most;
      if (row.poison != 0) numbers[r * V + 3] = row.poison;
    }
    const Side side = gpu();
    const Buffer logits = side.compute({R, V}, numbers), dlogits = side.compute({R, V}),
                 targets = side.ints({R}, Values(1.0, R));
    const LossResults to(side, R);
    side.backend.cross_entropy_train(to.of(logits, targets, valid, dlogits));
    const Values gradient = dlogits.values();
    for (std::int64_t r = 0; r < R; ++r) {
      SCOPED_TRACE(fmt::format("row {} of {} columns", r, V));
      const Row& row = rows[static_cast<std::size_t>(r)];
      EXPECT_EQ(to.maximum.values()[r], row.most);
      EXPECT_EQ(to.argmax.values()[r], row.where[0]);
      const double actual = to.sum.values()[r];
      if (std::isnan(row.exp_sum)) {
        EXPECT_TRUE(std::isnan(actual));
      } else {
        EXPECT_NEAR(actual, row.exp_sum, row.exp_sum * (kFunctionError + gamma(2 * valid)));
      }
      for (std::int64_t c = valid; c < V; ++c) EXPECT_EQ(gradient[r * V + c], 0);
      if (row.most == 0x1p40) {
        for (const std::int64_t c : {0, 1, 600})
          EXPECT_EQ(gradient[r * V + c], c == 1 ? -0.5 : c == 600 ? 0.5 : 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Cuda, kComputeTypes);

}  // namespace
}  // namespace shoal::test
