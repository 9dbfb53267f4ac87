// Pictures of small inputs, as in tests/report/pictures. After a change that is meant, SHOAL_WRITE_PICTURES=1
// writes them anew; look at them then.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "report/plot.h"
#include "report/schedule_picture.h"
#include "report/trace_picture.h"

namespace shoal {
namespace {

void expect_picture(const std::string& name, const std::string& picture) {
  const std::string path = SHOAL_SOURCE_DIR "/tests/report/pictures/" + name;
  if (std::getenv("SHOAL_WRITE_PICTURES")) std::ofstream(path) << picture;
  std::ifstream file(path);
  const std::string expected{std::istreambuf_iterator(file), {}};
  const auto [found, wanted] = std::ranges::mismatch(picture, expected);
  EXPECT_TRUE(picture == expected) << name << " differs from "
                                   << std::string(found, picture.end()).substr(0, 100)
                                   << "\non, where it was "
                                   << std::string(wanted, expected.end()).substr(0, 100);
}

TEST(Pictures, OfRuns) {
  std::vector<PlotRun> runs = {{"first", {}}, {"second", {}}, {"no steps", {}}};
  for (int step = 1; step <= 40; ++step) {
    runs[0].metrics.steps.push_back({.step = step,
                                     .loss = 4 / std::sqrt(step),
                                     .lr = 1e-3 * std::min(step, 10),
                                     .tokens_per_s = 1000.0 + 10 * (step % 7)});
    runs[1].metrics.steps.push_back(
        {.step = step, .loss = step == 9 ? NAN : 3.0 + 1.0 / step, .lr = 2e-3, .tokens_per_s = 20000});
  }
  for (int step = 0; step <= 40; step += 10) {
    runs[0].metrics.evals.push_back(
        {.step = step, .train_loss = 3, .val_loss = 4 - step / 20.0, .entropy_floor = 1.25});
    runs[1].metrics.evals.push_back(
        {.step = step, .train_loss = 3, .val_loss = std::abs(step - 20) / 10.0 + 2});
  }
  expect_picture("runs.svg", plot_svg(runs));
}

TEST(Pictures, OfSchedules) {
  expect_picture("1f1b.svg", schedule_svg(make_schedule(ScheduleKind::one_f_one_b,
                                                        {.stages = 3, .chunks = 1, .micro_batches = 5})));
  expect_picture(
      "interleaved.svg",
      schedule_svg(make_schedule(ScheduleKind::interleaved, {.stages = 2, .chunks = 2, .micro_batches = 4})));
  // The middle is left out.
  expect_picture("long.svg", schedule_svg(make_schedule(ScheduleKind::gpipe,
                                                        {.stages = 2, .chunks = 1, .micro_batches = 60})));
}

TEST(Pictures, OfATrace) {
  TraceStep step;
  step.name = "step 12";
  step.seconds = 0.5;
  step.rows.push_back({.rank = "rank 0",
                       .place = "pipeline 0",
                       .compute = {{"micro-batch", "forward", "0", 0.01, 0.1},
                                   {"forward", "block.0", "0", 0.02, 0.05},
                                   {"micro-batch", "backward", "0", 0.2, 0.45}},
                       .waits = {{"wait", "receive", "", 0.1, 0.19}}});
  step.rows.push_back({.rank = "rank 1",
                       .place = "pipeline 1",
                       .compute = {{"data", "batch", "", 0.01, 0.09},
                                   {"micro-batch", "forward", "0", 0.1, 0.15},
                                   {"optimizer", "update", "", 0.4, 0.49}},
                       .waits = {}});
  expect_picture("trace.svg", trace_svg(step));
  step.heading = "Step 12 as planned";
  step.seconds = 3;
  expect_picture("planned.svg", trace_svg(step));
}

TEST(Pictures, EscapeNamesFromATrace) {
  TraceStep step;
  step.name = "step 1";
  step.seconds = 1;
  step.rows.push_back({.rank = "<b>",
                       .place = "<b>",
                       .compute = {{"micro-batch", "forward", "0", 0, 1}},
                       .waits = {{"wait", "<b>", "", 0, 1}}});
  EXPECT_EQ(trace_svg(step).find("<b>"), std::string::npos);
}

}  // namespace
}  // namespace shoal
