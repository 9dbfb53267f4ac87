// The estimates of the memory that products take for themselves.
#include <gtest/gtest.h>
#include <malloc.h>

#include "ops/buffer.h"
#include "ops/cpu/cpu.h"

namespace shoal::test {
namespace {

// Bytes that the C library's allocator has given out. A sanitizer's own allocator shows nothing here.
std::size_t given_out() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

void expect_enough_memory(const KernelSizes& sizes, Backend& backend, const auto& product) {
  const auto before = given_out();
  product(backend);
  constexpr std::size_t kHugePages = 4 << 20;  // a large buffer begins and ends at one
  EXPECT_LE(given_out(), before + cpu_scratch_bytes(1, sizes) + kHugePages);
}

// Expects that a product [m, k] x [k, n] in bfloat16 takes no more memory than estimated. Without pairs of
// bfloat16 its left operand is widened.
void expect_enough_memory(const KernelSizes& sizes, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto backend = make_cpu_backend(1);
  const Buffer a{*backend, DType::bf16, {m, k}}, b{*backend, DType::bf16, {k, n}},
      c{*backend, DType::f32, {m, n}};
  expect_enough_memory(sizes, *backend, [&](Backend& on) { on.linear_backward_input(c, a, b); });
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

// Half of a gradient's sums lies beside it where the micro-batch has many times more rows than it.
TEST(CpuScratch, HasRoomForHalvesOfSums) {
  constexpr std::int64_t kChannels = 768, kRows = 3200;
  KernelSizes sizes{.batch = 1,
                    .positions = kRows,
                    .heads = 12,
                    .head_size = 64,
                    .columns = 4 * kChannels,
                    .channels = kChannels};
  const auto backend = make_cpu_backend(1);
  const Buffer dy{*backend, DType::f32, {kRows, 4 * kChannels}}, x{*backend, DType::f32, {kRows, kChannels}},
      dw{*backend, DType::f32, {4 * kChannels, kChannels}};
  expect_enough_memory(sizes, *backend, [&](Backend& on) { on.linear_backward_weight(dw, {}, dy, x, true); });
  // From 2 x 768 rows on for attention's output, 3.6 x 768 for its input, 4 x 768 for the MLP.
  const auto more_at = [&](std::int64_t rows) {  // floats than for a row less
    sizes.positions = rows;
    const auto bytes = cpu_scratch_bytes(1, sizes);
    sizes.positions = rows - 1;
    return static_cast<std::int64_t>((bytes - cpu_scratch_bytes(1, sizes)) / sizeof(float));
  };
  constexpr std::int64_t kSquare = kChannels * kChannels;
  EXPECT_LT(more_at(1536), kSquare);
  EXPECT_GE(more_at(1537), kSquare);
  for (const auto& [rows, squares] : {std::pair{2765, 2}, {3073, 1}}) {
    EXPECT_LT(more_at(rows - 1), kSquare / 2) << rows;
    EXPECT_GE(more_at(rows), squares * kSquare) << rows;
  }
}

}  // namespace
}  // namespace shoal::test
