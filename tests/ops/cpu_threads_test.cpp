// The cpu backend gives the same bits on any number of threads, in every op, at sizes that are shared among
// threads.
#include <functional>

#include "ops/conformance.h"

namespace shoal::test {
namespace {

using Bytes = std::vector<std::byte>;
using Operations = std::function<std::vector<Bytes>(const Side&)>;

class CpuThreads : public testing::TestWithParam<DType> {
 protected:
  void expect_same_bits(const Operations& run) const {
    const auto alone = make_cpu_backend(1);
    const std::vector<Bytes> expected = run({*alone, GetParam()});
    for (const int threads : {2, 3}) {
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
    const AdamWStep step{.lr = 0.1f, .weight_decay = 0.1f, .correction1 = 0.1f, .correction2 = 0.05f};
    side.backend.adamw(w, copy, m, v, side.full({n}, normal_values(n, 2)), step);
    return std::vector{w.bytes(), m.bytes(), v.bytes(), copy.bytes()};
  });
}

TEST_P(CpuThreads, Linear) {
  for (const Shape& shape : {Shape{768, 128, 128}, Shape{257, 100, 333}, Shape{1, 256, 1003},
                             Shape{1024, 48, 17}, Shape{4096, 48, 144}}) {
    const std::int64_t R = shape[0], K = shape[1], N = shape[2];
    expect_same_bits([&](const Side& side) {
      const Buffer x = side.compute({R, K}, values(R * K, 1)), w = side.compute({N, K}, values(N * K, 2)),
                   bias = side.compute({N}, values(N, 3)), dy = side.compute({R, N}, values(R * N, 4));
      const Buffer y = side.compute({R, N}), dx = side.compute({R, K}), dw = side.full({N, K}),
                   dbias = side.full({N});
      side.backend.linear_forward(y, x, w, bias);
      side.backend.linear_backward_input(dx, dy, w);
      side.backend.linear_backward_weight(dw, dbias, dy, x);
      return std::vector{y.bytes(), dx.bytes(), dw.bytes(), dbias.bytes()};
    });
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
    side.backend.embedding_forward(stream, tokens, wte, wpe, 0, dropout);
    side.backend.embedding_backward(dwte, dwpe, gradient, tokens, 0, dropout);
    side.backend.residual_backward(branch, gradient, dropout);
    side.backend.residual_forward(stream, stream, branch, dropout);

    const Buffer y = side.compute({B * T, C}), mean = side.full({B * T}), rstd = side.full({B * T}),
                 scale = side.compute({C}, values(C, 5)), dscale = side.full({C}), dshift = side.full({C});
    side.backend.layernorm_forward(y, mean, rstd, stream, scale, scale);
    side.backend.layernorm_backward(gradient, dscale, dshift, branch, stream, scale, mean, rstd);
    return std::vector{stream.bytes(), dwte.bytes(), dwpe.bytes(),     branch.bytes(), y.bytes(),
                       mean.bytes(),   rstd.bytes(), gradient.bytes(), dscale.bytes(), dshift.bytes()};
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
    side.backend.attention_forward(out, lse, qkv, 0, dropout);
    side.backend.attention_backward(dqkv, dout, out, lse, qkv, 0, dropout);
    const Buffer keys = side.compute({T, H, D}), cached_values = side.compute({T, H, D}),
                 answers = side.compute({T, H, D});
    side.backend.attention_cached(answers, keys, cached_values,
                                  side.compute({T, 3, H, D}, values(T * 3 * H * D, 1)), 0);
    return std::vector{out.bytes(), lse.bytes(), dqkv.bytes(), answers.bytes()};
  });
}

TEST_P(CpuThreads, CrossEntropy) {
  const std::int64_t R = 100, V = 1024, valid = 1003;
  expect_same_bits([&](const Side& side) {
    const Buffer logits = side.full({R, V}, normal_values(R * V, 1)),
                 targets = side.ints({R}, random_integers(R, 2, valid)), maximum = side.full({R}),
                 exp_sum = side.full({R}), target = side.full({R}), argmax = side.ints({R}),
                 losses = side.full({R}), dlogits = side.compute({R, V});
    side.backend.cross_entropy_stats(maximum, exp_sum, target, argmax, logits, targets, 0, valid);
    side.backend.cross_entropy_loss(losses, maximum, exp_sum, target, targets);
    side.backend.cross_entropy_backward(dlogits, logits, maximum, exp_sum, targets, 0, valid, 0.01f);
    return std::vector{maximum.bytes(), exp_sum.bytes(), target.bytes(),
                       argmax.bytes(),  losses.bytes(),  dlogits.bytes()};
  });
}

INSTANTIATE_TEST_SUITE_P(Types, CpuThreads, kComputeTypes);

}  // namespace
}  // namespace shoal::test
