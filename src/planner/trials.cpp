#include "planner/trials.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

namespace shoal {
namespace {

constexpr double kLongest = 15;                   // seconds of a step, behind which a trial takes too long
constexpr int kMost = 12;                         // plans
constexpr int kTrials = 6;                        // of a plan that may be the best
constexpr double kPromising = 1.1, kNear = 1.05;  // of the fastest plan's time
constexpr double kUntried = std::numeric_limits<double>::infinity();

// The mesh of a plan, and whether it shares tokens: what decides who waits for whom.
using Family = std::tuple<int, int, int, bool>;
Family family_of(const RunPlan& plan) {
  return {plan.mesh.pipeline, plan.mesh.data, plan.mesh.tensor, plan.sequence};
}

double tried_seconds(const RankedPlan& plan) { return plan.tried > 0 ? plan.tried : kUntried; }

double fastest(const std::vector<RankedPlan>& plans) {
  return tried_seconds(*std::ranges::min_element(plans, {}, tried_seconds));
}

// Predictions, each times the geometric mean of tried over predicted time in its family.
class Corrected {
 public:
  explicit Corrected(const std::vector<RankedPlan>& plans) {
    for (const auto& p : plans) {
      if (p.tried == 0) continue;
      auto& [sum, count] = logs_[family_of(p.plan)];
      sum += std::log(p.tried / p.prediction.seconds());
      ++count;
    }
  }
  double operator()(const RankedPlan& p) const {
    const auto known = logs_.find(family_of(p.plan));
    if (known == logs_.end()) return p.prediction.seconds();
    const auto [sum, count] = known->second;
    return p.prediction.seconds() * std::exp(sum / count);
  }

 private:
  std::map<Family, std::pair<double, int>> logs_;
};

}  // namespace

void try_plans(std::vector<RankedPlan>& plans, Machine& machine) {
  if (plans.size() < 2 || plans.front().prediction.seconds() > kLongest) return;
  for (int i = 0; i < kMost; ++i) {
    const Corrected corrected(plans);
    const auto untried = [&](const RankedPlan& p) { return p.tried > 0 ? kUntried : corrected(p); };
    auto& next = *std::ranges::min_element(plans, {}, untried);
    if (untried(next) > kPromising * fastest(plans)) break;
    next.tried = machine.try_step(next.plan, 1);
    if (next.tried == 0) break;
  }
  for (int trials = 2; trials <= kTrials; ++trials) {
    const double near = kNear * fastest(plans);
    for (auto& p : plans) {
      if (tried_seconds(p) <= near) p.tried = machine.try_step(p.plan, trials);
    }
  }
  // Trials and corrected predictions are about as exact, and err for different reasons: their mean decides.
  const Corrected corrected(plans);
  std::ranges::stable_sort(plans, {}, [&](const RankedPlan& p) {
    return p.tried > 0 ? std::sqrt(p.tried * corrected(p)) : kUntried;
  });
}

}  // namespace shoal
