#include "planner/plan_watch.h"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

namespace shoal {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The warning after steps of 2 ms, in a span of this category.
std::string said_after(double predicted_seconds, const std::string& category) {
  Prediction predicted;
  predicted.step.seconds = predicted_seconds;
  predicted.terms.fill(predicted_seconds / kCostTerms);
  PlanWatch watch(predicted);
  for (int step = 0; step < PlanWatch::kSteps; ++step) {
    EXPECT_EQ(watch.begin_step(), "");
    if (step < PlanWatch::kSteps - PlanWatch::kTimed) continue;
    const trace::Span span(category, category);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return watch.begin_step();
}

TEST(PlanWatch, SaysWhatTakesLongerThanPredicted) {
  EXPECT_THAT(said_after(1e-4, "forward"), AllOf(HasSubstr("more than the plan's 0.10 ms"),
                                                 HasSubstr("mostly in forward and backward passes: ")));
  EXPECT_THAT(said_after(1e-4, "backward"), HasSubstr("mostly in forward and backward passes: "));
  EXPECT_THAT(said_after(1e-4, "optimizer"), HasSubstr("mostly in gradients and update: "));
  EXPECT_THAT(said_after(1e-4, "wait"), HasSubstr("mostly in waits for other ranks and for data: "));
}

TEST(PlanWatch, SaysNothingOfStepsAsPredicted) { EXPECT_EQ(said_after(10, "forward"), ""); }

}  // namespace
}  // namespace shoal
