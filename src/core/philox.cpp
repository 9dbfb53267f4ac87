#include "core/philox.h"

#include <cmath>
#include <numbers>

namespace shoal {

std::array<double, 2> to_normals(const PhiloxBlock& block) {
  // u1 in (0, 1], so that the logarithm is finite.
  const double u1 =
      static_cast<double>((static_cast<std::uint64_t>(block[1]) << 32 | block[0]) >> 11) * 0x1p-53 + 0x1p-53;
  const double u2 =
      static_cast<double>((static_cast<std::uint64_t>(block[3]) << 32 | block[2]) >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * std::numbers::pi * u2;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace shoal
