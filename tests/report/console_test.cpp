#include "report/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/logged.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string line_of(const StepRecord& record) {
  return test::logged([&] { Console(1000, std::nullopt).step(record, 90); });
}

TEST(Console, AStep) {
  const auto line = line_of({.step = 10,
                             .loss = 3.25,
                             .lr = 1e-3,
                             .grad_norm = 0.5,
                             .tokens_per_s = 2500,
                             .ms_per_step = 12.5,
                             .peak_share = 0.25});
  EXPECT_THAT(line,
              HasSubstr("step   10/1000  loss 3.2500  lr 1.00e-03  grad norm 0.500  2.5k tokens/s  12.5 "
                        "ms/step  25.0 % of peak  ETA 1m 30s\n"));
}

TEST(Console, NumbersThatAreOutOfTheOrdinary) {
  const auto line =
      line_of({.step = 1000, .loss = 1e36, .grad_norm = 3e38, .tokens_per_s = 0.25, .peak_share = 4.27});
  EXPECT_THAT(line, HasSubstr("loss 1.0000e+36 "));
  EXPECT_THAT(line, HasSubstr("grad norm 3.000e+38 "));
  EXPECT_THAT(line, HasSubstr("  4.0 s/token "));
  EXPECT_THAT(line, Not(HasSubstr("peak"))) << "the peak was measured on a busy machine";
  EXPECT_THAT(line, Not(HasSubstr("ETA"))) << "nothing is left";
}

TEST(Console, AnEvaluationSaysHowLongStepsTookWhereThereWereAny) {
  EvalRecord record;
  record.step = 10;
  const auto line = [&](const TrainTime& time) {
    return test::logged([&] { Console(1000, std::nullopt).evaluation(record, time); });
  };
  EXPECT_THAT(line({.seconds = 2, .steps = 4, .total_seconds = 3}),
              HasSubstr("Train time: 2.000 s (500.000 ms/step), Total train time: 3.000 s"));
  EXPECT_THAT(line({}), Not(HasSubstr("Train time")));
}

TEST(Console, DrawsNoBarWhereThereIsNoTerminal) {
  testing::internal::CaptureStderr();
  Console(1000, std::nullopt).bar(10, 3.25, 90);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace shoal
