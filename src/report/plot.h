// The picture of one or several runs: loss, learning rate and speed over steps, as an SVG.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/metrics.h"

namespace shoal {

struct PlotRun {
  std::string name;  // as the legend shows it
  Metrics metrics;
};

// The whole SVG document: a legend with final and best validation loss, below it three panels with one x
// axis. Values that are not finite leave gaps. `runs` must not be empty.
std::string plot_svg(std::span<const PlotRun> runs);

// An axis whose ends are ticks: 1, 2 or 5 times a power of ten apart, about `wanted` of them.
struct Axis {
  double low = 0, high = 1, step = 1;

  static Axis around(double low, double high, int wanted);
  std::vector<double> ticks() const;
  std::string label(double tick) const;  // "0", "2.5", "10k", "6e-4"
};

// Points of a curve thinned to about two per bucket of x, its lowest and its highest, so that spikes stay
// visible.
struct PlotPoint {
  double x, y;
};
std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, std::size_t buckets);

}  // namespace shoal
