#include "data/text_tidy.h"

#include <gtest/gtest.h>

#include "data/temp_folder.h"

namespace shoal {
namespace {

// Fed in pieces of `step` bytes.
std::string tidied(std::string_view text, std::size_t step) {
  std::string result;
  TextTidy tidy([&](std::string_view piece) { result += piece; });
  for (std::size_t at = 0; at < text.size(); at += step) tidy.feed(text.substr(at, step));
  tidy.finish();
  return result;
}

// The result of Python's re.sub("\n\n\n+", "\n\n", open(file).read()).strip()
TEST(TextTidy, DoesWhatThePublishedPreparationDoes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""},
      {"  ", ""},
      {"a", "a"},
      {"\n\n a\n\n\n\nb \n", "a\n\nb"},
      {"a\r\n\r\n\r\nb", "a\n\nb"},
      {"a\r\r\rb\r", "a\n\nb"},
      {"\u3000a\u3000\n\n\n\u2028b\u0085", "a\u3000\n\n\u2028b"},
      {"a\n \n\n\n \nb", "a\n \n\n \nb"},
      {"a  b\t c \x1f", "a  b\t c"},
      {"\u200ba\u200b", "\u200ba\u200b"},
      {"a\n\n\n", "a"},
      {"one two\nthree  four\n", "one two\nthree  four"}};
  for (const auto& [text, expected] : cases) {
    for (std::size_t step = 1; step <= text.size() + 1; ++step) {
      EXPECT_EQ(tidied(text, step), expected) << ::testing::PrintToString(text) << " by " << step;
    }
  }
}

TEST(TextTidy, TakesPaddingAndLeavesOtherBytes) {
  using namespace std::string_literals;
  for (const std::size_t step : {1, 2, 3, 100}) {
    EXPECT_EQ(tidied("\0\0 a\0b\n\0\0\0"s, step), "a\0b"s);
    EXPECT_EQ(tidied("caf\xe9 \xff\xe3\x80 x\xe2\x80"s, step), "caf\xe9 \xff\xe3\x80 x\xe2\x80"s);
  }
}

TEST(TextTidy, LongWhiteSpaceTakesNoMemoryAndComesBack) {
  std::size_t longest = 0, total = 0;
  TextTidy tidy([&](std::string_view piece) {
    longest = std::max(longest, piece.size());
    total += piece.size();
  });
  const std::string spaces(1000, ' '), mixed = [] {
    std::string text;
    for (int i = 0; i < 50'000; ++i) text += " \t";
    return text;
  }();
  tidy.feed("a");
  for (int i = 0; i < 10'000; ++i) tidy.feed(spaces);
  tidy.feed("b" + mixed + "c");
  for (int i = 0; i < 10'000; ++i) tidy.feed(spaces);
  tidy.finish();
  EXPECT_EQ(total, 3 + 10'000'000 + mixed.size());
  EXPECT_LE(longest, std::size_t{1} << 17);
}

}  // namespace
}  // namespace shoal
