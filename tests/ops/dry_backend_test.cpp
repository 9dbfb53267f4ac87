// The dry backend counts bytes of memory and FLOPs.
#include "ops/dry/dry_backend.h"

#include <gtest/gtest.h>

#include "ops/buffer.h"

namespace shoal::test {
namespace {

TEST(DryBackend, CountsWhatIsAllocatedNowAndAtMost) {
  DryBackend backend;
  {
    const Buffer large(backend, DType::f32, {1000});
    EXPECT_EQ(backend.allocated(), 4000u);
  }
  const Buffer small(backend, DType::f32, {10});
  EXPECT_EQ(backend.allocated(), 40u);
  EXPECT_EQ(backend.most_allocated(), 4000u);
}

TEST(DryBackend, ResultsAreZeros) {
  DryBackend backend;
  const Buffer buffer(backend, DType::f32, {3});
  std::vector<float> host(3, 1.0f);
  backend.copy_to_host(host.data(), buffer);
  EXPECT_EQ(host, std::vector<float>(3, 0.0f));
}

// A multiply-add is two: each of a linear layer's three products makes rows x in x out of them.
TEST(DryBackend, CountsProducts) {
  DryBackend backend;
  const Buffer x(backend, DType::f32, {2, 3, 5}), y(backend, DType::f32, {2, 3, 7}),
      w(backend, DType::f32, {7, 5}), bias(backend, DType::f32, {7});
  const double product = 2.0 * 6 * 5 * 7;
  backend.linear_forward(y, x, w, bias);
  EXPECT_EQ(backend.flops(), product);
  backend.linear_backward_input(x, y, w);
  EXPECT_EQ(backend.flops(), 2 * product);
  backend.linear_backward_weight(w, bias, y, x, true);
  EXPECT_EQ(backend.flops(), 3 * product);
}

// 2 sequences of 6 positions, with a width of 3 x 4, make scores and their product with the values forward,
// the masked half included; backward twice that.
TEST(DryBackend, CountsAttention) {
  DryBackend backend;
  const Buffer qkv(backend, DType::f32, {2, 6, 3, 3, 4});
  const double forward = 2 * (2.0 * 2 * 6 * 6 * 12);
  backend.attention_forward({}, {}, qkv, 0, {});
  EXPECT_EQ(backend.flops(), forward);
  backend.attention_backward({.qkv = qkv});
  EXPECT_EQ(backend.flops(), 3 * forward);
}

}  // namespace
}  // namespace shoal::test
