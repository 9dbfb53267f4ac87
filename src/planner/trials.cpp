#include "planner/trials.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace shoal {
namespace {

constexpr double kLongest = 15;                   // seconds of a step, behind which a trial takes too long
constexpr int kMost = 12;                         // plans
constexpr int kTrials = 6;                        // of a plan that may be the best
constexpr double kPromising = 1.1, kNear = 1.05;  // of the fastest plan's time

// The mesh of a plan, and whether it shares tokens: what decides who waits for whom.
auto family_of(const RunPlan& plan) {
  return std::tuple(plan.mesh.pipeline, plan.mesh.data, plan.mesh.tensor, plan.sequence);
}

double tried_seconds(const RankedPlan& plan) {
  return plan.tried > 0 ? plan.tried : std::numeric_limits<double>::infinity();
}

double fastest(const std::vector<RankedPlan>& plans) {
  return tried_seconds(*std::ranges::min_element(plans, {}, tried_seconds));
}

}  // namespace

void try_plans(std::vector<RankedPlan>& plans, Machine& machine) {
  if (plans.size() < 2 || plans.front().prediction.seconds() > kLongest) return;
  std::map<decltype(family_of(plans.front().plan)), double> errors;  // of tried over predicted seconds
  const auto expected = [&](const RankedPlan& p) {
    if (p.tried > 0) return std::numeric_limits<double>::infinity();
    const auto known = errors.find(family_of(p.plan));
    return p.prediction.seconds() * (known == errors.end() ? 1 : known->second);
  };
  for (int i = 0; i < kMost; ++i) {
    auto& next = *std::ranges::min_element(plans, {}, expected);
    if (expected(next) > kPromising * fastest(plans)) break;
    next.tried = machine.try_step(next.plan, 1);
    if (next.tried == 0) break;
    errors[family_of(next.plan)] = next.tried / next.prediction.seconds();
  }
  for (int trials = 2; trials <= kTrials; ++trials) {
    const double near = kNear * fastest(plans);
    for (auto& p : plans) {
      if (tried_seconds(p) <= near) p.tried = machine.try_step(p.plan, trials);
    }
  }
  std::ranges::stable_sort(plans, {}, tried_seconds);
}

}  // namespace shoal
