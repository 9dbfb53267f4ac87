#include "core/utf8.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(Utf8, TakesEveryCodePointButSurrogates) {
  for (char32_t value = 0; value <= 0x10FFFF; ++value) {
    std::string text = "a";
    append_utf8(text, value);
    const auto found = decode_utf8(text, 1);
    if (value >= 0xD800 && value < 0xE000) {
      ASSERT_EQ(found.length, 0) << std::hex << static_cast<unsigned>(value);
    } else {
      ASSERT_EQ(found.value, value);
      ASSERT_EQ(found.length, static_cast<int>(text.size()) - 1);
      ASSERT_EQ(decode_utf8(text.substr(0, text.size() - 1) + "a", 1).length, value < 0x80 ? 1 : 0) << "cut";
    }
  }
}

TEST(Utf8, RefusesFormsThatAreTooLongOrTooLarge) {
  for (const char* text : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x80\x80\x80",
                           "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(decode_utf8(text, 0).length, 0) << text;
  }
}

TEST(Utf8, WholeTexts) {
  const std::string ascii(40, 'a');
  for (std::size_t length = 0; length <= ascii.size(); ++length) {
    const auto text = ascii.substr(0, length);
    EXPECT_TRUE(is_utf8(text));
    EXPECT_TRUE(is_utf8(text + "é€" + text));
    EXPECT_FALSE(is_utf8(text + "\xe9" + text)) << length;
    EXPECT_FALSE(is_utf8(text + "\xe2\x82")) << length;
  }
}

}  // namespace
}  // namespace shoal
