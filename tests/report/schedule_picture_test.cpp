#include "report/schedule_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleText, IsWholeWhereItFits) {
  const auto schedule =
      make_schedule(ScheduleKind::one_f_one_b, {.stages = 2, .chunks = 1, .micro_batches = 8});
  const auto whole = schedule_text(schedule, 200, false);
  const auto width = static_cast<int>(whole.find('\n'));
  EXPECT_EQ(schedule_text(schedule, width, false), whole);
  EXPECT_THAT(schedule_text(schedule, width - 1, false), HasSubstr(" ... "));
}

}  // namespace
}  // namespace shoal
