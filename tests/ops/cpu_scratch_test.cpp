// The estimates of the memory that products take for themselves.
#include <gtest/gtest.h>
#include <malloc.h>

#include "ops/buffer.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/product_scratch.h"

namespace shoal::test {
namespace {

using cpu::product_scratch_bytes;

// Bytes that the C library's allocator has given out. A sanitizer's own allocator shows nothing here.
std::size_t given_out() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Expects that a product [m, k] x [k, n] in bfloat16 takes no more memory than estimated. Without pairs of
// bfloat16 its left operand is widened.
void expect_enough_memory(const KernelSizes& sizes, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto backend = make_cpu_backend(1);
  const Buffer a{*backend, DType::bf16, {m, k}}, b{*backend, DType::bf16, {k, n}},
      c{*backend, DType::f32, {m, n}};
  const auto before = given_out();
  backend->linear_backward_input(c, a, b);
  constexpr std::size_t kHugePages = 4 << 20;  // a large buffer begins and ends at one
  EXPECT_LE(given_out(),
            before + cpu_scratch_bytes(1, sizes) + cpu_generated_bytes(DType::bf16) + kHugePages);
}

TEST(CpuScratch, HasRoomForRowsOfWidenedLogits) {
  expect_enough_memory({.batch = 30,
                        .positions = 64,
                        .heads = 1,
                        .head_size = 16,
                        .columns = 64,
                        .channels = 16,
                        .classes = 1536,
                        .logit_rows = 1920,
                        .compute = DType::bf16},
                       1920, 16, 1536);
}

// They have a row for each channel, which may be more than a micro-batch has.
TEST(CpuScratch, HasRoomForMuonsProducts) {
  expect_enough_memory({.batch = 1,
                        .positions = 64,
                        .heads = 16,
                        .head_size = 64,
                        .columns = 4096,
                        .channels = 1024,
                        .compute = DType::bf16},
                       1024, 64, 1024);
}

// GPT-2 124M's on one rank.
KernelSizes sizes_of_124m(std::int64_t rows) {
  return {.batch = 1,
          .positions = rows,
          .heads = 12,
          .head_size = 64,
          .columns = 3072,
          .channels = 768,
          .classes = 50304,
          .logit_rows = 667};
}

// Half of a gradient's sums lies beside it where the micro-batch has many times more rows than it: from
// 2 x 768 for attention's output, 2.57 x 768 for its input, 2.67 x 768 for the MLP.
TEST(CpuScratch, HasRoomForTheHalvesOfEachLayersGradient) {
  const auto halves = [](std::int64_t rows) {
    return static_cast<std::int64_t>(product_scratch_bytes(sizes_of_124m(rows)) / sizeof(float));
  };
  EXPECT_EQ(halves(1536), 0);
  EXPECT_EQ(halves(1537), 768 * 768);
  EXPECT_EQ(halves(2000), 3 * 768 * 768);
  EXPECT_EQ(halves(2049), 4 * 768 * 768);
}

}  // namespace
}  // namespace shoal::test
