#include "core/progress.h"

#include <gtest/gtest.h>

#include "core/terminal.h"

namespace shoal {
namespace {

const std::vector<std::string> kFacts = {"step 50/100", "ETA 2m 03s", "loss 3.1234"};

TEST(Progress, Rates) {
  EXPECT_EQ(format_rate(1536, "B"), "1.5 KiB/s");
  EXPECT_EQ(format_rate(12345, "tokens"), "12.3k tokens/s");
  EXPECT_EQ(format_rate(1.5, "batches"), "1.5 batches/s");
  EXPECT_EQ(format_rate(0.2941, "batches"), "3.4 s/batch");
  EXPECT_EQ(format_rate(0.005, "steps"), "3m 20s/step");
  EXPECT_EQ(format_rate(0, "steps"), "0.0 steps/s");
}

TEST(ProgressLine, TheBarTakesTheRoomThatIsLeft) {
  EXPECT_EQ(progress_line("", 0.5, kFacts, 70),
            "[============            ]  50 %  step 50/100  ETA 2m 03s  loss 3.1234");
  EXPECT_EQ(display_width(progress_line("", 0.5, kFacts, 70)), 70);
  EXPECT_EQ(display_width(progress_line("", 0.5, kFacts, 200)), 86);  // the widest
  EXPECT_EQ(progress_line("reading", 0.25, {"5 MiB"}, 36), "reading  [===         ]  25 %  5 MiB");
}

TEST(ProgressLine, FactsGoFromTheLastOne) {
  EXPECT_EQ(progress_line("", 0.5, kFacts, 44), " 50 %  step 50/100  ETA 2m 03s  loss 3.1234");
  EXPECT_EQ(progress_line("", 0.5, kFacts, 42), "[====     ]  50 %  step 50/100  ETA 2m 03s");
  EXPECT_EQ(progress_line("", 0.5, kFacts, 19), " 50 %  step 50/100");
}

TEST(ProgressLine, NeverTooWide) {
  for (const auto* title : {"", "evaluating val", "\u65E5\u672C\u8A9E\u306E\u6587\u7AE0.txt"}) {
    for (int columns = 1; columns < 120; ++columns) {
      for (const double share : {-1.0, 0.0, 0.3, 1.0, 1.5}) {
        EXPECT_LE(display_width(progress_line(title, share, kFacts, columns)), columns);
      }
    }
  }
}

TEST(ProgressLine, ALongTitleIsCutAndTheShareIsKept) {
  EXPECT_EQ(progress_line("verifying step-00000500", 0.5, kFacts, 20), "verifying ...   50 %");
}

TEST(ProgressLine, WithoutATerminalThereIsNoBar) {
  EXPECT_EQ(progress_line("reading", 0.5, kFacts, 0), "reading   50 %  step 50/100  ETA 2m 03s  loss 3.1234");
}

}  // namespace
}  // namespace shoal
