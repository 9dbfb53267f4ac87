#include "planner/trials.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "planner/measure.h"

namespace shoal {
namespace {

constexpr double kLongest = 15;      // seconds of a step, behind which a trial takes too long
constexpr double kFirstTrials = 20;  // seconds that the plans' first trials may take
constexpr int kTrials = 16;          // of a plan that may be the best
constexpr double kTooLong = 1.12;    // predictions of a mesh are at most this factor too long
// Standard errors, as shares of a step's time, of a trial and of a corrected prediction.
constexpr double kTrialError = 0.03, kPredictionError = 0.05;
constexpr double kUntried = std::numeric_limits<double>::infinity();

// The mesh of a plan, and whether it shares tokens: what decides who waits for whom.
using Family = std::tuple<int, int, int, bool>;
Family family_of(const RunPlan& plan) {
  return {plan.mesh.pipeline, plan.mesh.data, plan.mesh.tensor, plan.sequence};
}

// A trial takes a step that builds kernels, and some that are measured.
int plans_to_try(double step_seconds) {
  return static_cast<int>(
      std::clamp(kFirstTrials / (std::max(kSampleSeconds, step_seconds) + step_seconds), 4.0, 24.0));
}

// The share of the fastest plan's time within which a plan may be the best, after so many trials of both: a
// trial is some percent off.
double near(int trials) { return 1 + 0.1 / std::sqrt(trials); }

double tried_seconds(const RankedPlan& plan) { return plan.tried.count > 0 ? plan.tried.seconds : kUntried; }

double fastest(const std::vector<RankedPlan>& plans) {
  return tried_seconds(*std::ranges::min_element(plans, {}, tried_seconds));
}

// Predictions, each times the geometric mean of tried over predicted time in its family. Those of a family
// that was not tried are taken to be too long, so that each family that may be the best is tried.
class Corrected {
 public:
  explicit Corrected(const std::vector<RankedPlan>& plans) {
    for (const auto& p : plans) {
      if (p.tried.count == 0) continue;
      auto& [sum, count] = logs_[family_of(p.plan)];
      sum += std::log(p.tried.seconds / p.prediction.seconds());
      ++count;
    }
  }
  double operator()(const RankedPlan& p) const {
    const auto known = logs_.find(family_of(p.plan));
    if (known == logs_.end()) return p.prediction.seconds() / kTooLong;
    const auto [sum, count] = known->second;
    return p.prediction.seconds() * std::exp(sum / count);
  }

 private:
  std::map<Family, std::pair<double, int>> logs_;
};

// A trial is some percent off, a corrected prediction some more, for other reasons: the mean of their
// logarithms, each weighted by what it says of the truth.
double judged_seconds(const RankedPlan& p, double corrected) {
  const double trials = p.tried.count / (kTrialError * kTrialError);
  const double prediction = 1 / (kPredictionError * kPredictionError);
  return std::exp((trials * std::log(p.tried.seconds) + prediction * std::log(corrected)) /
                  (trials + prediction));
}

}  // namespace

void try_plans(std::vector<RankedPlan>& plans, Machine& machine) {
  if (plans.size() < 2 || plans.front().prediction.seconds() > kLongest) return;
  std::vector<const RankedPlan*> passed_over;  // without room, or when the time is up
  for (int left = plans_to_try(plans.front().prediction.seconds()); left > 0; --left) {
    const Corrected corrected(plans);
    const auto untried = [&](const RankedPlan& p) {
      const bool known = p.tried.count > 0 || std::ranges::find(passed_over, &p) != passed_over.end();
      return known ? kUntried : corrected(p);
    };
    auto& next = *std::ranges::min_element(plans, {}, untried);
    if (untried(next) == kUntried || untried(next) > near(1) * fastest(plans)) break;
    next.tried = machine.try_step(next.plan, 1);
    if (next.tried.count == 0) passed_over.push_back(&next);
  }
  if (fastest(plans) == kUntried) return;
  for (int trials = 2; trials <= kTrials; ++trials) {
    const double most = near(trials) * fastest(plans);
    for (auto& p : plans) {
      if (tried_seconds(p) <= most) p.tried = machine.try_step(p.plan, trials);
    }
  }
  const Corrected corrected(plans);
  std::ranges::stable_sort(plans, {}, [&](const RankedPlan& p) {
    return p.tried.count > 0 ? judged_seconds(p, corrected(p)) : kUntried;
  });
}

}  // namespace shoal
