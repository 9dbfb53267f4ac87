// Attention of the cuda backend by cuDNN, against our own kernels.
#include <fmt/format.h>

#include "core/error.h"
#include "ops/conformance.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/distance.h"

namespace shoal::test {
namespace {

class CudnnAttention : public testing::Test {
 protected:
  struct Results {
    Values out, lse, dqkv;
  };

  void SetUp() override {
    if (const auto why = cuda_attention_library().why_not; !why.empty()) GTEST_SKIP() << "no cuDNN: " << why;
  }

  static std::unique_ptr<Backend> by(AttentionKind kind) { return make_cuda_backend({.attention = kind}); }

  // Runs the backward pass of one backend on the results of another one's forward pass.
  static Results run(Backend& forward, Backend& backward, const Shape& qkv_shape, const Dropout& dropout = {},
                     DType type = DType::bf16) {
    const std::int64_t B = qkv_shape[0], T = qkv_shape[1], H = qkv_shape[3], D = qkv_shape[4],
                       n = B * T * H * D;
    const Values qkv = normal_values(3 * n, 1, type), dout = normal_values(n, 2, type);
    const auto start = [&](Backend& backend) {
      const Side side{backend, type};
      const Buffer out = side.compute({B, T, H, D}), lse = side.full({B, H, T});
      backend.attention_forward(out, lse, side.compute(qkv_shape, qkv), 0, side.at_step(dropout));
      return std::pair{out.values(), lse.values()};
    };
    const auto [out, lse] = start(forward);
    const Side side{backward, type};
    const Buffer dqkv = side.compute(qkv_shape);
    backward.attention_backward({.dqkv = dqkv,
                                 .dout = side.compute({B, T, H, D}, dout),
                                 .out = side.compute({B, T, H, D}, out),
                                 .lse = side.full({B, H, T}, lse),
                                 .qkv = side.compute(qkv_shape, qkv),
                                 .dropout = side.at_step(dropout)});
    return {out, lse, dqkv.values()};
  }

  static void expect_close(const Results& actual, const Results& expected) {
    // The same bound as between our own kernels.
    const double rounding = 4 * unit_roundoff(DType::bf16) + 1e-5;
    EXPECT_LE(distance(actual.out, expected.out), rounding);
    EXPECT_LE(distance(actual.lse, expected.lse), rounding);
    EXPECT_LE(distance(actual.dqkv, expected.dqkv), rounding);
  }
};

// A backward pass may follow the forward pass of the other implementation.
TEST_F(CudnnAttention, AgreesWithPlainKernels) {
  const auto cudnn = by(AttentionKind::cudnn), plain = by(AttentionKind::plain);
  for (const Shape& shape : {Shape{2, 128, 3, 2, 24}, {1, 256, 3, 1, 80}}) {
    SCOPED_TRACE(shape.to_string());
    const Results expected = run(*plain, *plain, shape);
    expect_close(run(*cudnn, *cudnn, shape), expected);
    expect_close(run(*cudnn, *plain, shape), expected);
    expect_close(run(*plain, *cudnn, shape), expected);
  }
}

// In the last shape, sequences are so long that the backward pass takes one at a time.
TEST_F(CudnnAttention, FastAndPlainAgreeOnSizesOfRealModels) {
  const auto cudnn = by(AttentionKind::cudnn), tensor = by(AttentionKind::tensor),
             plain = by(AttentionKind::plain);
  const auto unordered = make_cuda_backend({.attention = AttentionKind::cudnn, .ordered = false});
  for (const Shape& shape :
       {Shape{3, 1024, 3, 12, 64}, {5, 256, 3, 6, 64}, {2, 512, 3, 2, 128}, {2, 4096, 3, 16, 8}}) {
    SCOPED_TRACE(shape.to_string());
    const Results expected = run(*plain, *plain, shape);
    expect_close(run(*cudnn, *cudnn, shape), expected);
    expect_close(run(*cudnn, *tensor, shape), expected);
    expect_close(run(*unordered, *unordered, shape), expected);
    const Results again = run(*cudnn, *cudnn, shape), once_more = run(*cudnn, *cudnn, shape);
    EXPECT_TRUE((again.out == once_more.out).min() && (again.lse == once_more.lse).min() &&
                (again.dqkv == once_more.dqkv).min())
        << "other bits";
  }
}

// Attention that cuDNN does not support uses our kernels, unless only cuDNN was asked for.
TEST_F(CudnnAttention, IsTakenWhereItCan) {
  const auto any = by(AttentionKind::automatic), cudnn = by(AttentionKind::cudnn),
             plain = by(AttentionKind::plain);
  const Shape fits{1, 128, 3, 1, 40}, short_of_it{1, 100, 3, 1, 8}, uneven{1, 128, 3, 1, 12};
  for (const auto& [shape, dropout, type] : {std::tuple{fits, Dropout{}, DType::bf16},
                                             {short_of_it, Dropout{}, DType::bf16},
                                             {uneven, Dropout{}, DType::bf16},
                                             {fits, some_dropout(128), DType::bf16},
                                             {fits, Dropout{}, DType::f32}}) {
    SCOPED_TRACE(fmt::format("{} dropout {} {}", shape.to_string(), dropout.p, name_of(type)));
    expect_close(run(*any, *any, shape, dropout, type), run(*plain, *plain, shape, dropout, type));
    const bool taken = shape[4] == 40 && !dropout.active() && type == DType::bf16;
    if (taken) continue;
    EXPECT_THROW(run(*cudnn, *plain, shape, dropout, type), Error);
    EXPECT_THROW(run(*plain, *cudnn, shape, dropout, type), Error);
  }
}

}  // namespace
}  // namespace shoal::test
