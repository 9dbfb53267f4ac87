// Plots one or several runs as an SVG: loss, learning rate and speed over steps.
#pragma once

#include <span>
#include <string>
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

// An axis that begins and ends at a tick. Ticks are 1, 2 or 5 times a power of ten apart; there are about
// `wanted`.
struct Axis {
  double low = 0, high = 1, step = 1;

  static Axis around(double low, double high, int wanted);
  std::vector<double> ticks() const;
  std::string label(double tick) const;  // "0", "2.5", "10k", "6e-4"
};

// Reduces a curve to about two points per bucket of x, the lowest and the highest, so that spikes stay
// visible.
struct PlotPoint {
  double x, y;
};
std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, std::size_t buckets);

}  // namespace shoal
