#include "planner/plan_watch.h"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

namespace shoal {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void add_event(const std::string& category, const std::string& name, double begin, double end) {
  trace::recorder()->add({.category = category, .name = name, .begin = begin, .end = end, .arguments = {}});
}

// The warning after steps of 2 ms, of which something of this category takes all. An evaluation comes between
// them, and takes 50 ms behind the last.
std::string said_after(double predicted_seconds, const std::string& category) {
  Prediction predicted;
  predicted.step.seconds = predicted_seconds;
  predicted.terms.fill(predicted_seconds / kCostTerms);
  PlanWatch watch(predicted);
  for (int step = 0; step < PlanWatch::kSteps; ++step) {
    EXPECT_EQ(watch.begin_step(), "");
    if (step < PlanWatch::kSteps - PlanWatch::kTimed) continue;
    add_event("step", "verify", step, step + 1e-3);
    add_event(category, category, step, step + 2e-3);
    add_event("step", "step " + std::to_string(step + 1), step, step + 2e-3);
    add_event("forward", "forward block.0", step + 0.5, step + 0.9);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return watch.begin_step();
}

TEST(PlanWatch, SaysWhatTakesLongerThanPredicted) {
  EXPECT_THAT(said_after(1e-4, "forward"), AllOf(HasSubstr("more than the plan's 0.10 ms"),
                                                 HasSubstr("mostly in forward and backward passes: ")));
  EXPECT_THAT(said_after(1e-4, "backward"), HasSubstr("mostly in forward and backward passes: "));
  EXPECT_THAT(said_after(1e-4, "optimizer"), HasSubstr("mostly in gradients and update: "));
  EXPECT_THAT(said_after(1e-4, "wait"), HasSubstr("mostly in waits for other ranks and for data: "));
}

TEST(PlanWatch, SaysNothingOfStepsAsPredicted) {
  EXPECT_EQ(said_after(10, "forward"), "");
  EXPECT_EQ(said_after(2e-3, "forward"), "") << "what comes between steps does not count";
}

}  // namespace
}  // namespace shoal
