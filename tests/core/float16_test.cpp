#include "core/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace shoal {
namespace {

// The value by the format's definition.
double value_of(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Float16, EveryValueIsExactAndComesBack) {
  for (int i = 0; i < 65536; ++i) {
    const float16 half{static_cast<std::uint16_t>(i)};
    const float value = to_float(half);
    if (std::isnan(value_of(half.bits))) {
      EXPECT_TRUE(std::isnan(value)) << i;
      EXPECT_TRUE(std::isnan(to_float(to_float16(value)))) << i;
      continue;
    }
    ASSERT_EQ(value, value_of(half.bits)) << i;
    ASSERT_EQ(std::signbit(value), i >= 32768) << i;
    ASSERT_EQ(to_float16(value).bits, half.bits) << i;
  }
}

// Half way between neighbours, and just beside it; infinity's lower neighbour is 65504, of which 65520 is the
// border.
TEST(Float16, RoundsToNearestTiesToEven) {
  for (std::uint16_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = value_of(bits), high = bits == 0x7bff ? 65536 : value_of(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // exact
    const auto up = static_cast<std::uint16_t>(bits + 1), even = bits % 2 ? up : bits;
    ASSERT_EQ(to_float16(middle).bits, even) << bits;
    ASSERT_EQ(to_float16(-middle).bits, even | 0x8000) << bits;
    ASSERT_EQ(to_float16(std::nextafter(middle, 0.0f)).bits, bits) << bits;
    ASSERT_EQ(to_float16(std::nextafter(middle, 1e6f)).bits, up) << bits;
  }
  EXPECT_EQ(to_float16(1e30f).bits, 0x7c00);
  EXPECT_EQ(to_float16(-INFINITY).bits, 0xfc00);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::denorm_min()).bits, 0);
}

}  // namespace
}  // namespace shoal
