#include "report/finals.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace shoal {
namespace {

// Zeros are left out: a run writes them for facts that it does not know.
template <typename Get>
std::vector<double> known_values(const Metrics& metrics, Get get) {
  std::vector<double> values;
  for (const auto& record : metrics.steps) {
    if (const double value = get(record); std::isfinite(value) && value > 0) values.push_back(value);
  }
  return values;
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::optional<double> largest(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return std::ranges::max(values);
}

}  // namespace

Finals finals_of(const Metrics& metrics) {
  Finals finals{
      .tokens_per_s = median(known_values(metrics, [](const auto& r) { return r.tokens_per_s; })),
      .peak_share = median(known_values(metrics, [](const auto& r) { return r.peak_share; })),
      .memory_per_rank = largest(known_values(metrics, [](const auto& r) { return r.memory_per_rank; }))};
  for (const auto& record : metrics.evals) {
    finals.last = record;
    if (std::isfinite(record.val_loss) && (!finals.best || record.val_loss < finals.best->val_loss))
      finals.best = record;
    if (!finals.entropy_floor && record.entropy_floor && std::isfinite(*record.entropy_floor))
      finals.entropy_floor = record.entropy_floor;
  }
  return finals;
}

}  // namespace shoal
