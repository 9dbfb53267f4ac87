// Tests of the estimated time of a run, in numbers and words.
#include "report/run_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunTime, IsSaidWithoutFalsePrecision) {
  EXPECT_EQ(about(0.02), "a few seconds");
  EXPECT_EQ(about(47), "about 50 seconds");
  EXPECT_EQ(about(61 * 17), "about 17 minutes");
  EXPECT_EQ(about(3600 * 3.2), "about 3 hours");
  EXPECT_EQ(about(86400 * 2.4), "about 2 days");
  EXPECT_EQ(about(86400 * 6923.0), "about 19 years");
}

Config config_of(std::int64_t steps) {
  Config config;
  config.train.global_batch = 8;
  config.train.micro_batch = 4;
  config.train.steps = steps;
  config.model.block_size = 10;
  config.eval = {.interval = 100, .sequences = 120};
  return config;
}

TEST(RunTime, EvaluationsCount) {
  // Evaluations after 0, 100, ..., 1000 steps, of 2 x 120 sequences: a third of the work of 30 steps.
  const auto work = work_left(config_of(1000), 0, 1000, 1000, 100);
  EXPECT_EQ(work.steps, 1000);
  EXPECT_EQ(work.evaluations, 11);
  EXPECT_DOUBLE_EQ(work.evaluation_steps, 10);
  EXPECT_DOUBLE_EQ(work.seconds(2), 2 * (1000 + 11 * 10));
  EXPECT_EQ(run_time_text(work, 1), "about 19 minutes for 1,000 steps, 10 % of it evaluations");
  // The rest of a run.
  const auto rest = work_left(config_of(1000), 950, 1000, 1000, 100);
  EXPECT_EQ(rest.steps, 50);
  EXPECT_EQ(rest.evaluations, 1);

  auto whole = config_of(1000);
  whole.eval.sequences = 0;  // all of val, and as much of train
  EXPECT_DOUBLE_EQ(work_left(whole, 0, 100'000, 1200, 100).evaluation_steps, 2400.0 / 80 / 3);
  auto epochs = config_of(1000);
  epochs.eval.interval = 0, epochs.eval.epochs = 2;  // of 200 sequences, 25 steps
  EXPECT_EQ(work_left(epochs, 0, 1000, 1000, 100).evaluations, 40 + 1);
  auto other = config_of(1050);  // and after the last step
  EXPECT_EQ(work_left(other, 0, 1000, 1000, 100).evaluations, 12);
  other.eval.interval = 0;
  EXPECT_EQ(work_left(other, 0, 1000, 1000, 100).evaluations, 1);
  other.eval.interval = -1;
  EXPECT_EQ(work_left(other, 0, 1000, 1000, 100).evaluations, 0);
}

TEST(RunTime, ARunOfDaysSaysWhatToChange) {
  const auto work = work_left(config_of(600'000), 0, 1000, 1000, 100);
  EXPECT_EQ(too_long_advice(config_of(600'000), work, 1e-3), "");
  RunWork of_a_day;
  of_a_day.steps = 86'400;
  EXPECT_EQ(too_long_advice(config_of(86'400), of_a_day, 0.999), "");
  EXPECT_THAT(too_long_advice(config_of(86'400), of_a_day, 1), HasSubstr("a step is"));
  EXPECT_THAT(too_long_advice(config_of(600'000), work, 17 * 60),
              AllOf(HasSubstr("a step is about 17 minutes"), HasSubstr("train.steps"),
                    HasSubstr("train.global_batch"), HasSubstr("model.preset=gpt-mini"),
                    HasSubstr("an evaluation takes about 3 hours")));
  EXPECT_THAT(too_long_advice(config_of(600'000), work, 2), Not(HasSubstr("an evaluation takes")));
}

}  // namespace
}  // namespace shoal::test
