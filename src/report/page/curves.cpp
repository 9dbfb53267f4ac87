#include "report/page/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "report/plot.h"

namespace shoal {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostBuckets = 800;  // per curve; the widest panel has about 1,200 pixels

// The mean of each bucket's finite values, at their mean step.
std::vector<PlotPoint> bucket_means(const std::vector<PlotPoint>& points) {
  std::vector<PlotPoint> means;
  for (std::size_t b = 0; b < kMostBuckets; ++b) {
    PlotPoint sum{0, 0};
    int count = 0;
    for (auto i = b * points.size() / kMostBuckets; i < (b + 1) * points.size() / kMostBuckets; ++i) {
      if (!std::isfinite(points[i].y)) continue;
      sum = {sum.x + points[i].x, sum.y + points[i].y};
      ++count;
    }
    if (count > 0) means.push_back({sum.x / count, sum.y / count});
  }
  return means;
}

ordered_json column(const std::vector<PlotPoint>& points, double PlotPoint::*member) {
  auto values = ordered_json::array();
  for (const auto& point : points) values.push_back(short_number(point.*member));
  return values;
}

void add_curve(ordered_json& json, const char* name, const std::vector<PlotPoint>& points) {
  if (std::ranges::none_of(points, [](const PlotPoint& p) { return std::isfinite(p.y); })) return;
  const auto shown = thinned(points, kMostBuckets);
  auto& curve = json[name];
  curve["x"] = column(shown, &PlotPoint::x);
  curve["y"] = column(shown, &PlotPoint::y);
  if (shown.size() == points.size()) return;
  const auto means = bucket_means(points);
  curve["mean_x"] = column(means, &PlotPoint::x);
  curve["mean_y"] = column(means, &PlotPoint::y);
}

// A run writes zero for a fact that it does not know.
double or_gap(double value) { return value > 0 ? value : NAN; }

struct ClockTime {
  std::int64_t step = 0, tokens = 0;
  double seconds = 0;
};

std::vector<ClockTime> clock_of(const Metrics& metrics) {
  std::vector<ClockTime> times = {{}};
  for (const auto& record : metrics.steps) {
    const auto& before = times.back();
    const double seconds = 1e-3 * or_gap(record.ms_per_step) * static_cast<double>(record.step - before.step);
    times.push_back({.step = record.step,
                     .tokens = record.tokens,
                     .seconds = before.seconds + (std::isfinite(seconds) ? seconds : 0)});
  }
  return times;
}

ordered_json clock_json(const std::vector<ClockTime>& times) {
  auto steps = ordered_json::array(), tokens = ordered_json::array(), seconds = ordered_json::array();
  const auto stride = times.size() / kMostBuckets + 1;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (i % stride != 0 && i + 1 != times.size()) continue;
    steps.push_back(times[i].step);
    tokens.push_back(times[i].tokens);
    seconds.push_back(short_number(times[i].seconds));
  }
  return {{"step", steps}, {"tokens", tokens}, {"seconds", seconds}};
}

}  // namespace

ordered_json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < 0x1p53) return static_cast<std::int64_t>(value);
  return std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr);
}

double training_seconds(const Metrics& metrics) { return clock_of(metrics).back().seconds; }

ordered_json curves_json(const Metrics& metrics) {
  ordered_json json;
  json["clock"] = clock_json(clock_of(metrics));
  const auto logged = [&](const char* name, auto get) {
    add_curve(json, name, points_of(metrics.steps, get));
  };
  logged("loss", [](const StepRecord& r) { return r.loss; });
  logged("lr", [](const StepRecord& r) { return r.lr; });
  logged("grad_norm", [](const StepRecord& r) { return r.grad_norm; });
  logged("tokens_per_s", [](const StepRecord& r) { return or_gap(r.tokens_per_s); });
  logged("peak_share", [](const StepRecord& r) { return or_gap(r.peak_share); });
  logged("memory_per_rank", [](const StepRecord& r) { return or_gap(r.memory_per_rank); });
  const auto evaluated = [&](const char* name, auto get) {
    add_curve(json, name, points_of(metrics.evals, get));
  };
  evaluated("train_loss", [](const EvalRecord& r) { return r.train_loss; });
  evaluated("val_loss", [](const EvalRecord& r) { return r.val_loss; });
  evaluated("val_accuracy", [](const EvalRecord& r) { return r.val_accuracy.value_or(NAN); });
  evaluated("consensus_distance", [](const EvalRecord& r) { return r.consensus_distance.value_or(NAN); });
  return json;
}

}  // namespace shoal
