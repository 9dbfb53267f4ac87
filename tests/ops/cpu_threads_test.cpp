// Every op of the cpu backend gives the same bits on any number of threads, at sizes that threads share.
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include "ops/conformance.h"
#include "ops/cpu/cpu.h"

namespace shoal::test {
namespace {

using Bytes = std::vector<std::byte>;
using Operations = std::function<std::vector<Bytes>(const Side&)>;

class CpuThreads : public testing::TestWithParam<DType> {
 protected:
  void expect_same_bits(const Operations& run, std::initializer_list<int> counts = {2, 3}) const {
    const auto alone = make_cpu_backend(1);
    const std::vector<Bytes> expected = run({*alone, GetParam()});
    for (const int threads : counts) {
      const auto together = make_cpu_backend(threads);
      const std::vector<Bytes> actual = run({*together, GetParam()});
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(actual[i] == expected[i]) << "output " << i << " with " << threads << " threads";
      }
    }
  }
  Values values(std::int64_t n, std::uint32_t which) const { return normal_values(n, which, GetParam()); }
};

TEST_P(CpuThreads, Elementwise) {
  const std::int64_t n = 100003;
  expect_same_bits([&](const Side& side) {
    const Buffer x = side.full({n}, normal_values(n, 1)), half = side.compute({n}), filled = side.full({n}),
                 total{side.backend, DType::f64, {1}}, squares{side.backend, DType::f64, {1}},
                 y = side.compute({n}), dx = side.compute({n});
    side.backend.convert(half, x);
    side.backend.fill_normal(filled, 1, 2, 3, 1);
    side.backend.add(filled, half);
    side.backend.scale(filled, filled, 0.3f);
    side.backend.sum(total, x);
    side.backend.sum_squares(squares, x);
    side.backend.gelu_forward(y, half, Gelu::tanh);
    side.backend.gelu_backward(dx, y, half, Gelu::erf);
    return std::vector{half.bytes(), filled.bytes(), total.bytes(), squares.bytes(), y.bytes(), dx.bytes()};
  });
}

TEST_P(CpuThreads, AdamW) {
  const std::int64_t n = 150001;
  expect_same_bits([&](const Side& side) {
    const Buffer w = side.full({n}, normal_values(n, 1)), m = side.full({n}), v = side.full({n}),
                 copy{side.backend, DType::bf16, {n}};
    const Scalar<AdamWScalars> scalars(side.backend, {0.1f, 0.1f, 0.05f, 1});
    side.backend.adamw(
        {.weights = w, .compute = copy, .m = m, .v = v, .grads = side.full({n}, normal_values(n, 2))},
        {.scalars = scalars.get(), .weight_decay = 0.1f});
    return std::vector{w.bytes(), m.bytes(), v.bytes(), copy.bytes()};
  });
}

// Updates of enough numbers to go on beside other ops; the second reads what the first has written.
TEST_P(CpuThreads, AdamWLater) {
  const std::int64_t n = (1 << 20) + 5;
  const Values w_values = normal_values(n, 1), g_values = values(n, 2);
  expect_same_bits([&](const Side& side) {
    const Buffer w = side.full({n}, w_values), m = side.full({n}), v = side.full({n}),
                 copy{side.backend, DType::bf16, {n}}, grads = side.compute({n}, g_values),
                 beside = side.full({n});
    const Scalar<AdamWScalars> scalars(side.backend, {0.1f, 0.1f, 0.05f, 1});
    const auto done = side.backend.make_event();
    for (int update = 0; update < 2; ++update) {
      side.backend.wait(Backend::Stream::kernels, *done);
      side.backend.adamw_later({.weights = w, .compute = copy, .m = m, .v = v, .grads = grads},
                               {.scalars = scalars.get(), .weight_decay = 0.1f}, *done);
      side.backend.fill_normal(beside, 1, 2, 3, 1);
    }
    side.backend.wait(Backend::Stream::kernels, *done);
    return std::vector{w.bytes(), m.bytes(), v.bytes(), copy.bytes(), beside.bytes()};
  });
}

// Long sums, which are cut; small weights, whose rows threads share in pieces; and more threads than cores.
TEST_P(CpuThreads, Linear) {
  for (const Shape& shape :
       {Shape{768, 128, 128}, Shape{257, 100, 333}, Shape{1, 256, 1003}, Shape{1024, 48, 17},
        Shape{4096, 48, 144}, Shape{2048, 384, 80}, Shape{2048, 128, 384}, Shape{2048, 256, 96},
        Shape{2048, 64, 256}, Shape{512, 1024, 128}, Shape{300, 128, 640}, Shape{70, 64, 9000},
        Shape{1024, 768, 768}, Shape{600, 1024, 3072}}) {
    const std::int64_t R = shape[0], K = shape[1], N = shape[2];
    SCOPED_TRACE(shape.to_string());
    const Values x_values = values(R * K, 1), w_values = values(N * K, 2), bias_values = values(N, 3),
                 dy_values = values(R * N, 4), dw_values = normal_values(N * K, 5);
    const auto products = [&](const Side& side) {
      const Buffer x = side.compute({R, K}, x_values), w = side.compute({N, K}, w_values),
                   bias = side.compute({N}, bias_values), dy = side.compute({R, N}, dy_values);
      const Buffer y = side.compute({R, N}), dx = side.compute({R, K}), dw = side.full({N, K}, dw_values),
                   dbias = side.full({N});
      side.backend.linear_forward(y, x, w, bias);
      side.backend.linear_backward_input(dx, dy, w);
      side.backend.linear_backward_weight(dw, dbias, dy, x, false);
      return std::vector{y.bytes(), dx.bytes(), dw.bytes(), dbias.bytes()};
    };
    expect_same_bits(products, {2, 3, 4, 8, 16, 40});
  }
}

TEST_P(CpuThreads, Layers) {
  const std::int64_t B = 3, T = 257, C = 300, V = 65, n = B * T * C;
  const Dropout dropout = some_dropout(T);
  expect_same_bits([&](const Side& side) {
    const Buffer tokens = side.ints({B, T}, random_integers(B * T, 1, V));
    const Buffer wte = side.compute({V, C}, values(V * C, 2)), wpe = side.compute({T, C}, values(T * C, 3));
    const Buffer stream = side.full({B, T, C}), gradient = side.full({B, T, C}, normal_values(n, 4));
    const Buffer dwte = side.full({V, C}), dwpe = side.full({T, C}), branch = side.compute({B, T, C});
    side.backend.embedding_forward(stream, tokens, wte, wpe, 0, side.at_step(dropout));
    side.backend.embedding_backward(dwte, dwpe, gradient, tokens, 0, side.at_step(dropout));
    side.backend.residual_backward(branch, gradient, side.at_step(dropout));
    side.backend.residual_forward(stream, stream, branch, side.at_step(dropout));

    const Buffer y = side.compute({B * T, C}), mean = side.full({B * T}), rstd = side.full({B * T}),
                 scale = side.compute({C}, values(C, 5)), dscale = side.full({C}), dshift = side.full({C}),
                 sums = side.full({C});
    side.backend.layernorm_forward(y, mean, rstd, stream, scale, scale);
    side.backend.layernorm_residual_backward({.norm = {.dx = gradient,
                                                       .dgamma = dscale,
                                                       .dbeta = dshift,
                                                       .dy = branch,
                                                       .x = stream,
                                                       .gamma = scale,
                                                       .mean = mean,
                                                       .rstd = rstd},
                                              .sums = sums});
    return std::vector{stream.bytes(), dwte.bytes(),   dwpe.bytes(), branch.bytes(),
                       y.bytes(),      mean.bytes(),   rstd.bytes(), gradient.bytes(),
                       dscale.bytes(), dshift.bytes(), sums.bytes()};
  });
}

TEST_P(CpuThreads, Attention) {
  const std::int64_t B = 2, T = 150, H = 3, D = 40;
  const Dropout dropout = some_dropout(T);
  expect_same_bits([&](const Side& side) {
    const Buffer qkv = side.compute({B, T, 3, H, D}, values(B * T * 3 * H * D, 1)),
                 out = side.compute({B, T, H, D}),
                 dout = side.compute({B, T, H, D}, values(B * T * H * D, 2)), lse = side.full({B, H, T}),
                 dqkv = side.compute({B, T, 3, H, D});
    side.backend.attention_forward(out, lse, qkv, 0, side.at_step(dropout));
    side.backend.attention_backward(
        {.dqkv = dqkv, .dout = dout, .out = out, .lse = lse, .qkv = qkv, .dropout = side.at_step(dropout)});
    // The second of two texts at once, then a token of each.
    Values positions(T - 1);
    std::iota(std::begin(positions), std::end(positions), 0);
    const Buffer keys = side.compute({2, T, H, D}), cached_values = side.compute({2, T, H, D}),
                 prompt = side.compute({T - 1, H, D}), next = side.compute({2, H, D});
    side.backend.attention_cached(prompt, keys, cached_values,
                                  side.compute({T - 1, 3, H, D}, values((T - 1) * 3 * H * D, 1)),
                                  {.texts = side.ints({T - 1}, Values(1.0, T - 1)),
                                   .positions = side.ints({T - 1}, positions),
                                   .prompt = true});
    side.backend.attention_cached(next, keys, cached_values,
                                  side.compute({2, 3, H, D}, values(2 * 3 * H * D, 3)),
                                  {.texts = side.ints({2}, {0, 1}), .positions = side.ints({2}, {0, T - 1})});
    return std::vector{out.bytes(), lse.bytes(), dqkv.bytes(), prompt.bytes(), next.bytes()};
  });
}

TEST_P(CpuThreads, CrossEntropy) {
  const std::int64_t R = 100, V = 1024, valid = 1003;
  expect_same_bits([&](const Side& side) {
    const Buffer logits = side.full({R, V}, normal_values(R * V, 1)),
                 targets = side.ints({R}, random_integers(R, 2, valid)), maximum = side.full({R}),
                 exp_sum = side.full({R}), target = side.full({R}), argmax = side.ints({R}),
                 losses = side.full({R}), dlogits = side.compute({R, V});
    side.backend.cross_entropy_stats({.logits = logits,
                                      .targets = targets,
                                      .valid = valid,
                                      .maximum = maximum,
                                      .exp_sum = exp_sum,
                                      .target_logit = target,
                                      .argmax = argmax});
    side.backend.cross_entropy_loss({.targets = targets,
                                     .maximum = maximum,
                                     .exp_sum = exp_sum,
                                     .target_logit = target,
                                     .losses = losses});
    side.backend.cross_entropy_backward({.logits = logits,
                                         .targets = targets,
                                         .valid = valid,
                                         .maximum = maximum,
                                         .exp_sum = exp_sum,
                                         .dlogits = dlogits,
                                         .scale = 0.01f});
    return std::vector{maximum.bytes(), exp_sum.bytes(), target.bytes(),
                       argmax.bytes(),  losses.bytes(),  dlogits.bytes()};
  });
}

// Ranks as threads of a process: each has its own backend, and all compute at the same time.
TEST_P(CpuThreads, BackendsOfSeveralRanks) {
  const std::int64_t R = 512, C = 192, V = 512, n = R * C;
  const Values x = values(n, 1), w = values(V * C, 2), dy = values(R * V, 3), qkv = values(3 * n, 4);
  const auto step = [&](const Side& side) {
    const Buffer y = side.compute({R, V}), dx = side.compute({R, C}), dw = side.full({V, C}),
                 weights = side.compute({V, C}, w), input = side.compute({R, C}, x),
                 gradient = side.compute({R, V}, dy), out = side.compute({4, 128, 3, 64}),
                 lse = side.full({4, 3, 128});
    side.backend.linear_forward(y, input, weights, {});
    side.backend.linear_backward_input(dx, gradient, weights);
    side.backend.linear_backward_weight(dw, {}, gradient, input, false);
    side.backend.attention_forward(out, lse, side.compute({4, 128, 3, 3, 64}, qkv), 0,
                                   side.at_step(some_dropout(128)));
    return std::vector{y.bytes(), dx.bytes(), dw.bytes(), out.bytes(), lse.bytes()};
  };
  const auto two = make_cpu_backend(2);
  const auto expected = step({*two, GetParam()});
  const auto living = [] {
    using Entries = std::filesystem::directory_iterator;
    return std::distance(Entries("/proc/self/task"), Entries());
  };
  const auto before = living();
  for (int round = 0; round < 3; ++round) {
    std::array<bool, 4> same{};
    std::vector<std::thread> ranks;
    for (std::size_t rank = 0; rank < same.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        const auto backend = make_cpu_backend(rank % 2 == 0 ? 1 : 2);
        same[rank] = step({*backend, GetParam()}) == expected;
      });
    }
    for (auto& rank : ranks) rank.join();
    EXPECT_THAT(same, testing::Each(true));
  }
  // A rank's pool of threads ends soon after the rank.
  for (int waited = 0; waited < 100 && living() > before; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_LE(living(), before);
}

INSTANTIATE_TEST_SUITE_P(Types, CpuThreads, kComputeTypes);

}  // namespace
}  // namespace shoal::test
