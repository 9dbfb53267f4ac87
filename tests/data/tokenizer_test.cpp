// The char and bytes tokenizers, and functions common to all tokenizers.
#include "data/stored_tokenizer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "data/temp_folder.h"

namespace shoal {
namespace {

using shoal::test::user_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::string every_byte() {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

TEST(CharTokenizer, NumbersTheDistinctCharactersByCodePoint) {
  const auto tokenizer = make_char_tokenizer("be\nbé€😀a");
  EXPECT_EQ(tokenizer->name(), "char");
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  EXPECT_EQ(tokenizer->end_of_text(), std::nullopt);
  EXPECT_THAT(encode(*tokenizer, "\nabeé€😀"), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(tokenizer->decode(Ids{6, 0, 4}), "😀\né");
}

TEST(CharTokenizer, EncodeAppends) {
  Ids ids{7};
  make_char_tokenizer("ab")->encode("ba", ids);
  EXPECT_THAT(ids, ElementsAre(7, 1, 0));
}

TEST(CharTokenizer, VocabularyGrowsPieceByPiece) {
  CharVocabulary vocabulary;
  for (const char* piece : {"zé", "", "az"}) vocabulary.add(piece);
  EXPECT_EQ(vocabulary.build()->to_json(), make_char_tokenizer("azé")->to_json());
}

TEST(CharTokenizer, NamesTheUnknownCharacterAndItsPlace) {
  const auto tokenizer = make_char_tokenizer("ab\né");
  const auto error = [&](std::string_view text) { return user_error([&] { encode(*tokenizer, text); }); };
  EXPECT_THAT(error("ab\néa€"), AllOf(HasSubstr("\"€\" (U+20AC)"), HasSubstr("offset 6"),
                                      HasSubstr("line 2, column 3"), HasSubstr("4 characters")));
  EXPECT_THAT(error("\t"), AllOf(HasSubstr("character U+0009 at"), HasSubstr("line 1, column 1")));
  EXPECT_THAT(error("😀"), HasSubstr("U+1F600"));  // far past the vocabulary's last
}

TEST(CharTokenizer, RefusesWhatIsNotUtf8) {
  for (const char* bad :
       {"a\xff", "a\x80", "a\xc3", "a\xc0\x80", "a\xe2\x82", "a\xed\xa0\x80", "a\xf4\x90\x80\x80"}) {
    EXPECT_THAT(user_error([&] { make_char_tokenizer(bad); }),
                AllOf(HasSubstr("not UTF-8"), HasSubstr("offset 1")));
    EXPECT_THAT(user_error([&] { encode(*make_char_tokenizer("a"), bad); }), HasSubstr("not UTF-8"));
  }
}

TEST(CharTokenizer, RefusesAnEmptyText) {
  EXPECT_THAT(user_error([] { make_char_tokenizer(""); }), HasSubstr("empty"));
}

TEST(ByteTokenizer, TakesEveryByteAsItIs) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->name(), "bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_THAT(encode(*tokenizer, std::string_view("\0a\xff", 3)), ElementsAre(0, 97, 255));
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, every_byte())), every_byte());
  EXPECT_EQ(tokenizer->decode(Ids{97, 256}), "a<|endoftext|>");
}

TEST(Tokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  EXPECT_THAT(user_error([] { make_byte_tokenizer()->decode(Ids{257}); }), HasSubstr("token 257"));
  EXPECT_THAT(user_error([] { make_byte_tokenizer()->decode(Ids{-1}); }), HasSubstr("token -1"));
  EXPECT_THAT(user_error([] { make_char_tokenizer("ab")->decode(Ids{2}); }), HasSubstr("token 2"));
  EXPECT_THAT(user_error([] { make_char_tokenizer("ab")->decode(Ids{-1}); }), HasSubstr("token -1"));
}

TEST(Tokenizer, JsonKeepsAllOfIt) {
  const std::string text = "\"quoted\"\\\n\t\x7f é€😀";
  for (const auto& tokenizer : {make_char_tokenizer(text), make_byte_tokenizer()}) {
    const nlohmann::json json = nlohmann::json::parse(tokenizer->to_json().dump());
    const auto copy = tokenizer_from_json(json, "meta.json");
    EXPECT_EQ(copy->name(), tokenizer->name());
    EXPECT_EQ(copy->vocab_size(), tokenizer->vocab_size());
    EXPECT_EQ(encode(*copy, text), encode(*tokenizer, text));
    EXPECT_EQ(copy->decode(encode(*tokenizer, text)), text);
  }
}

TEST(Tokenizer, DamagedJsonIsTheUsersFault) {
  const auto error = [](const char* json) {
    return user_error([&] { tokenizer_from_json(nlohmann::json::parse(json), "DIR/meta.json"); });
  };
  EXPECT_THAT(error("{}"), AllOf(HasSubstr("DIR/meta.json"), HasSubstr("char, bytes, gpt2 or bpe")));
  EXPECT_THAT(error("[1]"), HasSubstr("DIR/meta.json"));
  EXPECT_THAT(error(R"({"name": 3})"), HasSubstr("DIR/meta.json"));
  EXPECT_THAT(error(R"({"name": "char"})"), AllOf(HasSubstr("DIR/meta.json"), HasSubstr("empty")));
  EXPECT_THAT(error(R"({"name": "char", "vocabulary": "aba"})"), HasSubstr("\"a\" (U+0061) twice"));
  EXPECT_THAT(error(R"({"name": "gpt2"})"), AllOf(HasSubstr("DIR/meta.json"), HasSubstr("0 merges")));
  for (const char* json :
       {R"({"name": "bpe", "merges": "a b"})", R"({"name": "bpe", "merges": "a b", "special": [1]})",
        R"({"name": "bpe", "merges": "a b", "special": {"x": "y"}})"}) {
    EXPECT_THAT(error(json), AllOf(HasSubstr("DIR/meta.json"), HasSubstr("special tokens")));
  }
  EXPECT_THAT(error(R"({"name": "bpe", "merges": "a b", "special": {"x": 999}})"), HasSubstr("the id 999"));
}

}  // namespace
}  // namespace shoal
