#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "core/error.h"
#include "report/plot.h"

namespace shoal {

Axis Axis::around(double low, double high, int wanted) {
  if (!(high > low)) {
    const double pad = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= pad, high += pad;
  }
  const double rough = (high - low) / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double times = rough / power;
  const double step = (times <= 1.5 ? 1 : times <= 3.5 ? 2 : times <= 7.5 ? 5 : 10) * power;
  // The tolerance keeps an end that equals a tick up to rounding from moving a whole step outwards.
  return {std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, step};
}

std::vector<double> Axis::ticks() const {
  std::vector<double> values;
  const auto count = std::lround((high - low) / step);
  for (long i = 0; i <= count; ++i) {
    const double value = low + static_cast<double>(i) * step;
    values.push_back(std::abs(value) < step * 1e-6 ? 0 : value);
  }
  return values;
}

std::string Axis::label(double tick) const {
  if (tick == 0) return "0";
  const double largest = std::max(std::abs(low), std::abs(high));
  if (largest < 0.01 || largest >= 1e12) {
    const auto exponent = static_cast<int>(std::floor(std::log10(std::abs(tick)) + 1e-9));
    const double mantissa = std::round(tick / std::pow(10, exponent) * 1000) / 1000;
    return fmt::format("{}e{}", mantissa, exponent);
  }
  const double unit = largest >= 1e6 ? 1e6 : largest >= 1e4 ? 1e3 : 1;
  const auto decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step / unit) - 1e-9)));
  return fmt::format("{:.{}f}{}", tick / unit, decimals, unit == 1e6 ? "M" : unit == 1e3 ? "k" : "");
}

std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, std::size_t buckets) {
  if (points.size() <= 2 * buckets) return points;
  std::vector<PlotPoint> kept;
  for (std::size_t b = 0; b < buckets; ++b) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(b * points.size() / buckets);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>((b + 1) * points.size() / buckets);
    auto low = end, high = end, gap = end;
    for (auto point = begin; point != end; ++point) {
      if (!std::isfinite(point->y)) {
        if (gap == end) gap = point;
        continue;
      }
      if (low == end || point->y < low->y) low = point;
      if (high == end || point->y > high->y) high = point;
    }
    std::array chosen = {low, high, gap};
    std::ranges::sort(chosen);
    for (const auto point : std::span(chosen.begin(), std::unique(chosen.begin(), chosen.end()))) {
      if (point != end) kept.push_back(*point);
    }
  }
  return kept;
}

}  // namespace shoal
