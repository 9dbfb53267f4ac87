// Plots one or several runs as an SVG: loss, learning rate and speed over steps.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/metrics.h"

namespace shoal {

struct PlotRun {
  std::string name;  // for the legend
  Metrics metrics;
};

// A complete SVG document: a legend with final and best validation loss, and three panels with a common x
// axis. Values that are not finite leave gaps. `runs` must not be empty.
std::string plot_svg(std::span<const PlotRun> runs);

// The line style of a run: a colour, and dashes when all colours are used.
struct RunStyle {
  std::string_view colour;  // for white paper
  std::string_view dashes;  // a stroke-dasharray; "" for a solid line
};
RunStyle style_of_run(std::size_t index);

// An axis that begins and ends at a tick. Ticks are 1, 2 or 5 times a power of ten apart; there are about
// `wanted`.
struct Axis {
  double low = 0, high = 1, step = 1;

  static Axis around(double low, double high, int wanted);
  std::vector<double> ticks() const;
  std::string label(double tick) const;  // "0", "2.5", "10k", "6e-4"
};

struct PlotPoint {
  double x, y;
};

// The curve of one number of records over their steps.
template <typename Record, typename Get>
std::vector<PlotPoint> points_of(const std::vector<Record>& records, Get get) {
  std::vector<PlotPoint> points;
  for (const auto& record : records) points.push_back({static_cast<double>(record.step), get(record)});
  return points;
}

// Reduces a curve to at most three points per bucket of x: the lowest, the highest, so that spikes stay
// visible, and the first that is not finite, which is a gap.
std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, std::size_t buckets);

}  // namespace shoal
