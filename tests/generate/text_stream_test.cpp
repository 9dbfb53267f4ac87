#include "generate/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/philox.h"
#include "core/utf8.h"

namespace shoal {
namespace {

std::string joined(const std::vector<std::string>& pieces) {
  Utf8Joiner joiner;
  std::string text;
  for (const auto& piece : pieces) text += joiner.push(piece);
  return text + joiner.finish();
}

std::vector<std::string> bytes_of(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char byte : text) pieces.emplace_back(1, byte);
  return pieces;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const int length = decode_utf8(text, at).length;
    if (length == 0) return false;
    at += static_cast<std::size_t>(length);
  }
  return true;
}

TEST(Utf8Joiner, HoldsACharacterBackUntilItIsWhole) {
  Utf8Joiner joiner;
  EXPECT_EQ(joiner.push("a\xE2"), "a");
  EXPECT_EQ(joiner.push("\x82"), "");
  EXPECT_EQ(joiner.push("\xAC"
                        "b"),
            "€b");
  EXPECT_EQ(joiner.finish(), "");
}

// Every character, byte by byte: nothing comes before its last byte, and then it comes whole.
TEST(Utf8Joiner, EveryCodePoint) {
  for (char32_t value = 0; value < 0x110000; value += value < 0x11000 ? 1 : 61) {
    if (value >= 0xD800 && value < 0xE000) continue;
    std::string character;
    append_utf8(character, value);
    Utf8Joiner joiner;
    for (std::size_t i = 0; i + 1 < character.size(); ++i) {
      ASSERT_EQ(joiner.push(character.substr(i, 1)), "") << static_cast<std::uint32_t>(value);
    }
    ASSERT_EQ(joiner.push(character.substr(character.size() - 1)), character);
  }
}

TEST(Utf8Joiner, BytesThatAreNoCharacterAreReplaced) {
  EXPECT_EQ(joined({"a\xFF"
                    "b"}),
            "a\uFFFDb");
  EXPECT_EQ(joined({"\x80"}), "\uFFFD");
  EXPECT_EQ(joined({"\xC0\xAF"}), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(joined({"\xED\xA0\x80"}), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(joined({"\xF4\x90\x80\x80"}), "\uFFFD\uFFFD\uFFFD\uFFFD");  // past the last
  EXPECT_EQ(joined({"\xE2\x82"
                    "x"}),
            "\uFFFD\uFFFDx");
  EXPECT_EQ(joined({"x\xE2\x82"}), "x\uFFFD\uFFFD");  // never completed
}

TEST(Utf8Joiner, AnyBytesBecomeUtf8HoweverTheyAreCut) {
  // Bytes that are dense in beginnings and ends of characters.
  const std::string alphabet = "a\x80\xBF\x9F\xA0\x90\x8F\xC2\xE0\xE2\xED\xF0\xF4\xFF";
  for (std::uint32_t row = 0; row < 500; ++row) {
    std::string bytes;
    for (std::uint32_t i = 0; i < 24; ++i) {
      const auto block = philox(philox_key(5, PhiloxStream::corpus), {i, row, 0, 0});
      bytes += alphabet[to_below(block, alphabet.size())];
    }
    const auto whole = joined({bytes});
    ASSERT_TRUE(is_utf8(whole));
    ASSERT_EQ(joined(bytes_of(bytes)), whole);
  }
}

struct Stopped {
  std::string text;
  bool stopped;
  bool operator==(const Stopped&) const = default;
};

Stopped filtered(const std::string& stop, const std::vector<std::string>& pieces) {
  StopFilter filter({stop});
  std::string text;
  for (const auto& piece : pieces) text += filter.push(piece);
  return {text + filter.finish(), filter.stopped()};
}

TEST(StopFilter, EndsBeforeTheStopString) {
  EXPECT_EQ(filtered("END", {"one END two"}), (Stopped{"one ", true}));
  EXPECT_EQ(filtered("END", {"one E", "N", "D two"}), (Stopped{"one ", true}));
  EXPECT_EQ(filtered("END", {"one EN", "EN"}), (Stopped{"one ENEN", false}));
  EXPECT_EQ(filtered("", {"one", "two"}), (Stopped{"onetwo", false}));
}

TEST(StopFilter, EndsBeforeTheFirstOfSeveral) {
  StopFilter filter({"END", "two", ""});
  EXPECT_EQ(filter.push("one tw"), "one ");
  EXPECT_EQ(filter.push("ice E"), "twice ");
  EXPECT_EQ(filter.push("ND two"), "");
  EXPECT_TRUE(filter.stopped());
}

TEST(StopFilter, HoldsBackNoMoreThanItMust) {
  StopFilter filter({"\n\n"});
  EXPECT_EQ(filter.push("a line\n"), "a line");
  EXPECT_EQ(filter.push("another"), "\nanother");
  EXPECT_EQ(filter.push("\n\nthe end"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("more"), "");
}

TEST(StopFilter, AgreesWithASearchOfTheWholeText) {
  for (const std::string stop : {"a", "ab", "aab", "abab", "aaaa", "abaabab"}) {
    for (std::uint32_t bits = 0; bits < 4096; ++bits) {
      std::string text;
      for (int i = 0; i < 12; ++i) text += bits >> i & 1 ? 'a' : 'b';
      const auto at = text.find(stop);
      const Stopped expected{text.substr(0, at), at != std::string::npos};
      ASSERT_EQ(filtered(stop, bytes_of(text)), expected) << text << " until " << stop;
      ASSERT_EQ(filtered(stop, {text.substr(0, 5), text.substr(5)}), expected) << text << " until " << stop;
    }
  }
}

}  // namespace
}  // namespace shoal
