#include "core/terminal.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace shoal {
namespace {

TEST(Terminal, WidthOfText) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("plain"), 5);
  EXPECT_EQ(display_width("Stra\u00DFe \u2013 \u20AC"), 10);
  EXPECT_EQ(display_width("e\u0301te\u0301"), 3);  // combining accents
  EXPECT_EQ(display_width("\u65E5\u672C\u8A9E"), 6);
  EXPECT_EQ(display_width("\U0001F600"), 2);
  EXPECT_EQ(display_width("\xFF\xC3"), 2);  // not UTF-8
}

TEST(Terminal, CutsAtWholeCharacters) {
  EXPECT_EQ(cut_to_width("plain", 5), "plain");
  EXPECT_EQ(cut_to_width("longer", 5), "lo...");
  EXPECT_EQ(cut_to_width("\u65E5\u672C\u8A9E", 6), "\u65E5\u672C\u8A9E");
  EXPECT_EQ(cut_to_width("\u65E5\u672C\u8A9E", 5), "\u65E5...");
  EXPECT_EQ(cut_to_width("\u65E5\u672C\u8A9E", 4), "...");
  EXPECT_EQ(cut_to_width("longer", 2), "..");
  EXPECT_EQ(cut_to_width("longer", 0), "");
}

TEST(Terminal, APipeIsNone) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(terminal_columns(ends[1]), 0);
  ::close(ends[0]), ::close(ends[1]);
}

}  // namespace
}  // namespace shoal
