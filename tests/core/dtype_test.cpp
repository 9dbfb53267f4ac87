// bfloat16: every pattern there and back, rounding to nearest and ties to even, infinities and NaN.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace shoal {
namespace {

float bits_to_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(BFloat16, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bfloat16 value{static_cast<std::uint16_t>(bits)};
    const bfloat16 back = to_bfloat16(to_float(value));
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(back))) << bits;
    } else {
      EXPECT_EQ(back.bits, value.bits);
    }
  }
}

// Between every finite pattern and the next one away from zero: a tie goes to the even one, anything else to
// the nearer.
TEST(BFloat16, RoundsToNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7f80u) == 0x7f80u) continue;            // infinities and NaN
    const std::uint32_t low = bits << 16, up = bits + 1;  // past the largest, up is infinity
    EXPECT_EQ(to_bfloat16(bits_to_float(low | 0x7fff)).bits, bits);
    EXPECT_EQ(to_bfloat16(bits_to_float(low | 0x8000)).bits, bits % 2 == 0 ? bits : up);
    EXPECT_EQ(to_bfloat16(bits_to_float(low | 0x8001)).bits, up);
    EXPECT_EQ(to_bfloat16(bits_to_float(low | 0xffff)).bits, up);
  }
}

TEST(BFloat16, NanNeverBecomesInfinity) {
  for (const std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7f80ffffu}) {
    EXPECT_TRUE(std::isnan(to_float(to_bfloat16(bits_to_float(bits))))) << std::hex << bits;
  }
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(name_of(DType::f32), "float32");
  EXPECT_EQ(name_of(DType::bf16), "bfloat16");
}

}  // namespace
}  // namespace shoal
