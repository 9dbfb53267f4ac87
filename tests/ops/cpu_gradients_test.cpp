// Gradients of parameters in the compute type: the ops that add to them, and those that read them.
#include <cmath>
#include <tuple>

#include "ops/conformance.h"

namespace shoal::test {
namespace {

class CpuGradients : public Conformance<std::tuple<std::int64_t, std::int64_t, std::int64_t>> {
 protected:
  static double norm(const Values& x) { return std::sqrt(Values(x * x).sum()); }
};

// Gradients of parameters in bfloat16 are those in float32, rounded. Products may be by another algorithm,
// and a class with more than 32 tokens is rounded twice.
TEST_P(CpuGradients, MayBeBfloat16) {
  constexpr double kOnce = unit_roundoff(DType::bf16);
  const Side side = cpu(DType::bf16);
  const auto [R, C, N] = GetParam();
  const auto values = [](std::int64_t n, std::uint32_t which) {
    return normal_values(n, which, DType::bf16);
  };
  auto& ops = side.backend;
  const auto gradient = [&](DType type, Shape shape, std::uint32_t which) {
    return Buffer(ops, type, shape, normal_values(shape.count(), which, DType::bf16));
  };
  const auto expect_rounded = [](const Values& narrow, const Values& wide, const char* what) {
    EXPECT_TRUE((narrow == rounded(wide, DType::bf16)).min()) << what;
  };
  const Buffer dy = side.compute({R, N}, values(R * N, 1)), x = side.compute({R, C}, values(R * C, 2)),
               in = side.full({R, C}, normal_values(R * C, 3)), mean = side.full({R}), rstd = side.full({R}),
               scale = side.compute({C}, values(C, 4)), y = side.compute({R, C});
  ops.layernorm_forward(y, mean, rstd, in, scale, {});
  const Buffer tokens = side.ints({2, R / 2}, random_integers(R, 5, 3)),
               upstream = side.full({2, R / 2, C}, normal_values(R * C, 6));
  for (const bool overwrite : {false, true}) {
    const auto products = [&](DType type) {
      const Buffer dw = gradient(type, {N, C}, 7), db = gradient(type, {N}, 8);
      ops.linear_backward_weight(dw, db, dy, x, overwrite);
      return std::pair(dw.values(), db.values());
    };
    const auto wide = products(DType::f32), narrow = products(DType::bf16);
    EXPECT_LE(norm(narrow.first - wide.first), 2 * kOnce * norm(wide.first));
    expect_rounded(narrow.second, wide.second, "bias");
  }
  const auto layers = [&](DType type) {
    const Buffer dgamma = gradient(type, {C}, 9), dbeta = gradient(type, {C}, 10), dx = side.full({R, C}),
                 dwte = gradient(type, {4, C}, 11), dwpe = gradient(type, {R / 2, C}, 12);
    ops.layernorm_backward({.dx = dx,
                            .dgamma = dgamma,
                            .dbeta = dbeta,
                            .dy = x,
                            .x = in,
                            .gamma = scale,
                            .mean = mean,
                            .rstd = rstd});
    ops.embedding_backward(dwte, dwpe, upstream, tokens, 0, side.at_step({}));
    return std::array{dgamma.values(), dbeta.values(), dwpe.values(), dwte.values()};
  };
  const auto wide = layers(DType::f32), narrow = layers(DType::bf16);
  expect_rounded(narrow[0], wide[0], "gamma");
  expect_rounded(narrow[1], wide[1], "beta");
  expect_rounded(narrow[2], wide[2], "positions");
  EXPECT_LE(norm(narrow[3] - wide[3]), 4 * kOnce * norm(wide[3]));

  // The same numbers in either type.
  const auto uses = [&](DType type) {
    const Buffer g = gradient(type, {R * C}, 13), squares(ops, DType::f64, {R}), w = side.full({R * C}),
                 m = side.full({R * C}), v = side.full({R * C});
    Scalar<AdamWScalars> scalars(ops, {0.1f, 0.1f, 0.05f, 1});
    ops.zero(squares);
    for (const auto* state : {&w, &m, &v}) ops.zero(*state);
    ops.sum_squares(squares, g);
    ops.adamw({.weights = w, .m = m, .v = v, .grads = g}, {.scalars = scalars.get()});
    return std::array{squares.values(), w.values(), m.values(), v.values()};
  };
  const auto of_wide = uses(DType::f32), of_narrow = uses(DType::bf16);
  for (std::size_t i = 0; i < of_wide.size(); ++i) EXPECT_TRUE((of_wide[i] == of_narrow[i]).min()) << i;
}

INSTANTIATE_TEST_SUITE_P(Sizes, CpuGradients,
                         testing::Values(std::tuple{300, 768, 24}, std::tuple{70, 30, 17},
                                         std::tuple{4000, 40, 24}));

}  // namespace
}  // namespace shoal::test
