#include "planner/plan_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace shoal {

std::string PlanWatch::begin_step() {
  ++steps_;
  if (steps_ == kSteps - kTimed + 1) recorder_ = std::make_unique<trace::Recorder>();
  if (steps_ != kSteps + 1) return "";
  const auto warning = compare();
  recorder_.reset();
  return warning;
}

std::string PlanWatch::compare() const {
  // Evaluations and checkpoints come between steps and do not count.
  std::vector<const trace::Event*> steps;
  double seconds = 0;
  for (const auto& event : recorder_->events()) {
    if (event.category != "step" || !event.name.starts_with("step ")) continue;
    steps.push_back(&event);
    seconds += (event.end - event.begin) / kTimed;
  }
  if (seconds <= 1.2 * predicted_.seconds()) return "";
  const auto in_step = [&](const trace::Event& event) {
    return std::ranges::any_of(
        steps, [&](const auto* step) { return step->begin <= event.begin && event.end <= step->end; });
  };
  const auto predicted = [&](CostTerm term) { return predicted_.terms[static_cast<std::size_t>(term)]; };
  // Spans of units include the tensor group's collectives, and waits for parameters.
  double passes = 0, update = 0;
  for (const auto& event : recorder_->events()) {
    if (!in_step(event)) continue;
    const double took = (event.end - event.begin) / kTimed;
    if (event.category == "forward" || event.category == "backward") passes += took;
    if (event.category == "optimizer") update += took;
  }
  struct Part {
    const char* name;
    double measured, predicted;
  };
  const double pass_terms = predicted(CostTerm::forward) + predicted(CostTerm::backward) +
                            predicted(CostTerm::tensor) + predicted(CostTerm::parameters);
  const double update_terms = predicted(CostTerm::update) + predicted(CostTerm::gradients);
  const std::array<Part, 3> parts = {{{"forward and backward passes", passes, pass_terms},
                                      {"gradients and update", update, update_terms},
                                      {"waits for other ranks and for data", seconds - passes - update,
                                       predicted_.seconds() - pass_terms - update_terms}}};
  const Part* worst = parts.data();
  for (const auto& part : parts) {
    if (part.measured - part.predicted > worst->measured - worst->predicted) worst = &part;
  }
  return fmt::format(
      "steps take {:.2f} ms, {:.0f} % more than the plan's {:.2f} ms, mostly in {}: {:.2f} ms instead of "
      "{:.2f} ms; "
      "is the machine busy? `shoal calibrate --again` measures it anew",
      1e3 * seconds, 100 * (seconds / predicted_.seconds() - 1), 1e3 * predicted_.seconds(), worst->name,
      1e3 * worst->measured, 1e3 * worst->predicted);
}

}  // namespace shoal
