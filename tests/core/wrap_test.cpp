#include "core/wrap.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(Wrap, FillsLinesOfAWidth) {
  EXPECT_EQ(wrap("one two three four", "  ", 9), "  one two\n  three\n  four\n");
  EXPECT_EQ(wrap("one two three four", "  ", 12), "  one two\n  three four\n");
}

TEST(Wrap, AWordThatIsLongerStandsAlone) {
  EXPECT_EQ(wrap("a considerable b", "", 5), "a\nconsiderable\nb\n");
  EXPECT_EQ(wrap("", "- ", 5), "- \n");
}

}  // namespace
}  // namespace shoal
