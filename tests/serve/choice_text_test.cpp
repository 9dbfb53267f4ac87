#include "serve/choice_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::serve {
namespace {

using testing::ElementsAre;

// A choice of a byte tokenizer, whose tokens are parts of characters; 256 ends a text.
struct Choice {
  explicit Choice(std::vector<std::string> stops = {}) : text(*tokenizer, stops, true) {}

  bool push(std::string_view bytes) {
    for (const char byte : bytes) {
      if (add(text.push({static_cast<unsigned char>(byte), Logprobs{}}))) return false;
    }
    return true;
  }
  bool add(Piece piece) {
    whole += piece.text;
    for (auto& token : piece.tokens) {
      EXPECT_TRUE(token.offset < characters() || piece.finish_reason) << "of text that is still to come";
      tokens.push_back(token.text);
      offsets.push_back(token.offset);
    }
    if (piece.finish_reason) reason = piece.finish_reason;
    return piece.finish_reason != nullptr;
  }
  std::int64_t characters() const {
    return std::ranges::count_if(whole, [](char byte) { return (byte & 0xC0) != 0x80; });
  }

  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  ChoiceText text;
  std::string whole, reason;
  std::vector<std::string> tokens;
  std::vector<std::int64_t> offsets;
};

TEST(ChoiceText, OffsetsCountCharacters) {
  Choice choice;
  EXPECT_TRUE(choice.push("a€b"));
  choice.add(choice.text.finish());
  EXPECT_EQ(choice.whole, "a€b");
  EXPECT_EQ(choice.reason, "length");
  EXPECT_THAT(choice.tokens, ElementsAre("a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b"));
  EXPECT_THAT(choice.offsets, ElementsAre(0, 1, 1, 1, 2));
}

TEST(ChoiceText, AStopStringTakesItsTokensAway) {
  Choice choice({"bcd", "€"});
  EXPECT_TRUE(choice.push("abc"));
  EXPECT_EQ(choice.whole, "a") << "the stop string may go on";
  EXPECT_TRUE(choice.push("a"));
  EXPECT_EQ(choice.whole, "abca");
  EXPECT_FALSE(choice.push("x€y"));
  EXPECT_EQ(choice.whole, "abcax");
  EXPECT_EQ(choice.reason, "stop");
  EXPECT_THAT(choice.tokens, ElementsAre("a", "b", "c", "a", "x"));
}

TEST(ChoiceText, EndOfTextIsAStopWithoutText) {
  Choice choice({"bcd"});
  choice.push("abc");
  EXPECT_TRUE(choice.add(choice.text.push({256})));
  EXPECT_EQ(choice.whole, "abc");
  EXPECT_EQ(choice.reason, "stop");
  EXPECT_THAT(choice.tokens, ElementsAre("a", "b", "c"));
}

TEST(ChoiceText, ABrokenCharacterIsReplaced) {
  Choice choice;
  choice.push("a\xE2\x82");
  choice.add(choice.text.finish());
  EXPECT_EQ(choice.whole, "a\uFFFD\uFFFD");
  EXPECT_THAT(choice.offsets, ElementsAre(0, 1, 1));
}

// The text goes on within a character of the prompt, and stop strings of the prompt count for nothing.
TEST(ChoiceText, EchoesThePrompt) {
  Choice choice({"a"});
  const std::vector<std::int32_t> prompt = {'a', 0xE2, 0x82};
  choice.add(choice.text.echo(prompt, {Logprobs{}, Logprobs{}}));
  EXPECT_EQ(choice.whole, "a");
  choice.push(
      "\xAC"
      "b");
  choice.add(choice.text.finish());
  EXPECT_EQ(choice.whole, "a€b");
  EXPECT_THAT(choice.offsets, ElementsAre(0, 1, 1, 1, 2));
}

}  // namespace
}  // namespace shoal::serve
