#include "report/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "report/finals.h"
#include "report/svg.h"

namespace shoal {
namespace {

constexpr const char* kInk = "#222222";
constexpr const char* kFaintInk = "#6b7280";
constexpr const char* kGrid = "#e8eaed";
constexpr const char* kAxisLine = "#9aa0a6";

constexpr double kWidth = 1000;
constexpr double kLeft = 74, kRight = 976;  // x range of the panels
constexpr double kLegendTop = 66, kLegendRow = 21;
constexpr double kLossHeight = 350, kSmallHeight = 150;
constexpr std::size_t kBuckets = 450;

std::string line(double x1, double y1, double x2, double y2, std::string_view attributes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2,
                     attributes);
}

struct Panel {
  double left, right, top, bottom;
  Axis x, y;
  double at_x(double value) const { return left + (value - x.low) / (x.high - x.low) * (right - left); }
  // Far above the panel all values are at one place, since viewers take no larger numbers.
  double at_y(double value) const {
    constexpr double kFarthest = -1e4;
    return std::max(bottom - (value - y.low) / (y.high - y.low) * (bottom - top), kFarthest);
  }
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  void add(double value) {
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

std::string frame(const Panel& panel, std::string_view title, std::string_view unit) {
  std::string svg;
  for (const double tick : panel.y.ticks()) {
    const double y = panel.at_y(tick);
    svg += line(panel.left, y, panel.right, y,
                fmt::format("stroke=\"{}\"", tick == panel.y.low ? kAxisLine : kGrid));
    svg += svg_text(panel.left - 8, y + 4, "class=\"tick\" text-anchor=\"end\"", panel.y.label(tick));
  }
  for (const double tick : panel.x.ticks()) {
    const double x = panel.at_x(tick);
    svg += line(x, panel.bottom, x, panel.bottom + 4, fmt::format("stroke=\"{}\"", kAxisLine));
    svg += svg_text(x, panel.bottom + 18, "class=\"tick\" text-anchor=\"middle\"", panel.x.label(tick));
  }
  svg += svg_text((panel.left + panel.right) / 2, panel.bottom + 36, "class=\"tick\" text-anchor=\"middle\"",
                  "step");
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"title\">{}<tspan class=\"unit\" dx=\"8\">{}</tspan></text>\n",
      panel.left, panel.top - 14, title, unit);
  return svg;
}

std::string curve(const Panel& panel, const std::vector<PlotPoint>& points, std::string_view attributes) {
  std::string path;
  std::size_t drawn = 0, together = 0;  // points, and those since the last gap
  bool dots = false;
  const auto lift_pen = [&] {
    if (together == 1) path += "h0", dots = true;  // a line without length, whose round ends are a dot
    together = 0;
  };
  for (const auto& [x, y] : thinned(points, kBuckets)) {
    if (!std::isfinite(y)) {
      lift_pen();
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", together > 0 ? "L" : "M", panel.at_x(x), panel.at_y(y));
    ++drawn, ++together;
  }
  lift_pen();
  if (drawn == 0) return "";
  std::string ends = dots ? "stroke-linecap=\"round\" " : "";
  if (drawn == 1) ends += "style=\"stroke-width:5;opacity:1\" ";  // a dot as thin as a curve is not seen
  return fmt::format("<path d=\"{}\" fill=\"none\" {}{}/>\n", path, ends, attributes);
}

std::vector<PlotPoint> val_points(const Metrics& metrics) {
  return points_of(metrics.evals, [](const EvalRecord& r) { return r.val_loss; });
}

std::string markers(const Panel& panel, const PlotRun& run, std::string_view colour) {
  constexpr std::size_t kMost = 60;  // more markers would touch
  std::string svg;
  const auto points = val_points(run.metrics);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto& [x, y] = points[i];
    if (!std::isfinite(y) || (points.size() > kMost && i + 1 != points.size())) continue;
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.8\" fill=\"{}\" stroke=\"white\" stroke-width=\"0.8\">"
        "<title>{}, step {:.0f}: val loss {:.4f}</title></circle>\n",
        panel.at_x(x), panel.at_y(y), colour, svg_escaped(run.name), x, y);
  }
  return svg;
}

std::pair<std::string_view, std::string> attributes_of_run(std::size_t index) {
  const auto [colour, dashes] = style_of_run(index);
  return {colour, dashes.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dashes)};
}

// The legend of the line styles in the loss panel.
std::string style_key(double right, double y) {
  struct Style {
    const char* name;
    const char* attributes;
    double width;
  };
  static constexpr std::array kStyles = {
      Style{"validation", "stroke-width=\"2.2\"", 96},
      Style{"train, evaluated", "stroke-width=\"1.5\" stroke-dasharray=\"5 3\"", 128},
      Style{"train, each logged step", "stroke-width=\"1.2\" opacity=\"0.45\"", 164},
  };
  double x = right;
  for (const auto& style : kStyles) x -= style.width;
  std::string svg;
  for (const auto& style : kStyles) {
    svg += line(x, y - 4, x + 22, y - 4, fmt::format("stroke=\"{}\" {}", kFaintInk, style.attributes));
    svg += svg_text(x + 28, y, "class=\"tick\"", style.name);
    x += style.width;
  }
  return svg;
}

// A line for every entropy floor: in the run's colour, or in black where several runs have the same floor.
std::string entropy_floors(const Panel& panel, std::span<const PlotRun> runs) {
  std::map<double, std::vector<std::size_t>> runs_of;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (const auto floor = finals_of(runs[i].metrics).entropy_floor) runs_of[*floor].push_back(i);
  }
  std::string svg;
  double label_x = panel.left + 8;
  for (const auto& [floor, with] : runs_of) {
    const bool own = with.size() == 1;
    const double y = panel.at_y(floor);
    svg += line(panel.left, y, panel.right, y,
                fmt::format("stroke=\"{}\" stroke-width=\"1.3\" stroke-dasharray=\"2 4\"",
                            own ? style_of_run(with[0]).colour : kInk));
    const auto whose = runs.size() > 1 && own ? runs[with[0]].name + "'s data" : "the data";
    svg +=
        svg_text(label_x, y - 6, "class=\"note\"", fmt::format("entropy floor of {} {:.4f}", whose, floor));
    label_x += 300;  // beside the label of the previous floor, which may be close
    if (label_x > panel.right - 300) label_x = panel.left + 8;
  }
  return svg;
}

Axis step_axis(std::span<const PlotRun> runs, int wanted) {
  Range steps;
  steps.add(0);
  for (const auto& run : runs) {
    if (!run.metrics.steps.empty()) steps.add(static_cast<double>(run.metrics.steps.back().step));
    if (!run.metrics.evals.empty()) steps.add(static_cast<double>(run.metrics.evals.back().step));
  }
  Axis axis = Axis::around(0, std::max(steps.high, 1.0), wanted);
  return axis;
}

// The highest value that an axis shows: the largest, unless it lies far beyond nearly all the others, as the
// last losses of a run that diverges do. The page of runs has the same rule (page/chart.js).
double top_of(std::vector<double> values) {
  std::ranges::sort(values);
  const double largest = values.back(),
               most = values[static_cast<std::size_t>(0.95 * static_cast<double>(values.size() - 1))],
               width = most - values.front();
  if (width == 0 || largest <= most + 30 * width) return largest;
  return *std::prev(std::ranges::upper_bound(values, most + 2 * width));
}

std::string loss_panel(std::span<const PlotRun> runs, double top) {
  std::vector<double> losses;
  const auto add = [&](double loss) {
    if (std::isfinite(loss)) losses.push_back(loss);
  };
  for (const auto& run : runs) {
    for (const auto& record : run.metrics.steps) add(record.loss);
    for (const auto& record : run.metrics.evals) {
      add(record.train_loss), add(record.val_loss);
      if (record.entropy_floor) add(*record.entropy_floor);
    }
  }
  if (losses.empty()) losses.push_back(0);
  const Panel panel{kLeft,
                    kRight,
                    top,
                    top + kLossHeight,
                    step_axis(runs, 10),
                    Axis::around(std::ranges::min(losses), top_of(losses), 7)};
  std::string svg = frame(panel, "Loss", "nats per token") + style_key(kRight, top - 14);
  constexpr double kMarker = 4;  // the radius of a marker on an edge
  svg += fmt::format(
      "<clipPath id=\"loss\"><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>"
      "</clipPath><g clip-path=\"url(#loss)\">\n",
      panel.left - kMarker, panel.top - kMarker, panel.right - panel.left + 2 * kMarker,
      panel.bottom - panel.top + 2 * kMarker);
  // Drawn in layers, so that no training curve hides another run's validation curve.
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto logged = points_of(runs[i].metrics.steps, [](const StepRecord& r) { return r.loss; });
    svg += curve(panel, logged,
                 fmt::format("stroke=\"{}\" stroke-width=\"1\" opacity=\"0.4\"", style_of_run(i).colour));
  }
  svg += entropy_floors(panel, runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto evaluated = points_of(runs[i].metrics.evals, [](const EvalRecord& r) { return r.train_loss; });
    svg += curve(
        panel, evaluated,
        fmt::format("stroke=\"{}\" stroke-width=\"1.5\" stroke-dasharray=\"5 3\"", style_of_run(i).colour));
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto [colour, dashes] = attributes_of_run(i);
    svg +=
        curve(panel, val_points(runs[i].metrics),
              fmt::format("stroke=\"{}\" stroke-width=\"2.2\" stroke-linejoin=\"round\"{}", colour, dashes));
    svg += markers(panel, runs[i], colour);
  }
  return svg + "</g>\n";
}

template <typename Get>
std::string small_panel(std::span<const PlotRun> runs, double left, double right, double top,
                        std::string_view title, std::string_view unit, Get get) {
  Range values;
  values.add(0);
  for (const auto& run : runs) {
    for (const auto& record : run.metrics.steps) values.add(get(record));
  }
  const Panel panel{left,
                    right,
                    top,
                    top + kSmallHeight,
                    step_axis(runs, 5),
                    Axis::around(0, values.high > 0 ? values.high : 1, 4)};
  std::string svg = frame(panel, title, unit);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto [colour, dashes] = attributes_of_run(i);
    svg +=
        curve(panel, points_of(runs[i].metrics.steps, get),
              fmt::format("stroke=\"{}\" stroke-width=\"1.6\" stroke-linejoin=\"round\"{}", colour, dashes));
  }
  return svg;
}

std::string loss_text(double loss) {
  return loss < 1e6 ? fmt::format("{:.4f}", loss) : fmt::format("{:.1e}", loss);
}
std::string with_step(const EvalRecord& record) {
  return fmt::format("{} at {}", loss_text(record.val_loss), with_commas(record.step));
}

// A table with each run's line style, name, final and best validation loss, and speed.
std::string legend(std::span<const PlotRun> runs) {
  constexpr double kFinal = 560, kBest = 740, kSpeed = kRight;
  std::string svg;
  const auto header = [&](double x, std::string_view anchor, std::string_view name) {
    svg += svg_text(x, kLegendTop - 22, fmt::format("class=\"unit\" text-anchor=\"{}\"", anchor), name);
  };
  header(kLeft + 36, "start", "run");
  header(kFinal, "end", "final val loss");
  header(kBest, "end", "best val loss");
  header(kSpeed, "end", "median tokens/s");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double y = kLegendTop + kLegendRow * static_cast<double>(i);
    const auto [colour, dashes] = attributes_of_run(i);
    svg += line(kLeft, y - 4, kLeft + 26, y - 4,
                fmt::format("stroke=\"{}\" stroke-width=\"3\"{}", colour, dashes));
    svg += svg_text(kLeft + 36, y, "class=\"name\"", runs[i].name);
    const auto finals = finals_of(runs[i].metrics);
    svg += svg_text(kFinal, y, "class=\"name\" text-anchor=\"end\"",
                    finals.last ? loss_text(finals.last->val_loss) : "–");
    svg +=
        svg_text(kBest, y, "class=\"name\" text-anchor=\"end\"", finals.best ? with_step(*finals.best) : "–");
    svg += svg_text(kSpeed, y, "class=\"name\" text-anchor=\"end\"",
                    finals.tokens_per_s ? with_commas(std::llround(*finals.tokens_per_s)) : "–");
  }
  return svg;
}

constexpr const char* kStyle =
    "<style>text{font-family:Inter,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif;fill:#222;"
    "font-variant-numeric:tabular-nums}"
    ".title{font-size:15px;font-weight:600}.unit{font-size:12px;font-weight:400;fill:#6b7280}"
    ".tick{font-size:11.5px;fill:#6b7280}.name{font-size:13px}.note{font-size:11.5px;fill:#222;"
    "paint-order:stroke;stroke:white;stroke-width:3px}</style>\n";

}  // namespace

RunStyle style_of_run(std::size_t index) {
  // The palette of Okabe and Ito, which colour-blind readers can distinguish, in an order for white paper.
  constexpr std::array kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                   "#E69F00", "#56B4E9", "#444444"};
  constexpr std::array kDashes = {"", "8 3", "2 3"};
  return {kColours[index % kColours.size()], kDashes[index / kColours.size() % kDashes.size()]};
}

std::string plot_svg(std::span<const PlotRun> runs) {
  const double loss_top = kLegendTop + kLegendRow * static_cast<double>(runs.size()) + 38;
  const double small_top = loss_top + kLossHeight + 92;
  const double height = small_top + kSmallHeight + 52;
  const double middle = (kLeft + kRight) / 2;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\">\n"
      "{2}<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, height, kStyle);
  svg += legend(runs) + loss_panel(runs, loss_top);
  svg += small_panel(runs, kLeft, middle - 28, small_top, "Learning rate", "",
                     [](const StepRecord& r) { return r.lr; });
  svg += small_panel(runs, middle + 46, kRight, small_top, "Speed", "tokens/s",
                     [](const StepRecord& r) { return r.tokens_per_s; });
  return svg + "</svg>\n";
}

}  // namespace shoal
