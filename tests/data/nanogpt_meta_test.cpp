#include "data/nanogpt_meta.h"

#include <gmock/gmock.h>

#include "data/temp_folder.h"

namespace shoal {
namespace {

using namespace std::string_literals;
using test::read_file;
using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::filesystem::path fixture(int protocol) {
  return std::filesystem::path(SHOAL_SOURCE_DIR "/tests/data/fixtures/nanogpt") /
         ("meta-" + std::to_string(protocol) + ".pkl");
}

TEST(NanoGptMeta, IsReadInEveryProtocol) {
  for (int protocol = 0; protocol <= 5; ++protocol) {
    const auto tokenizer = read_nanogpt_meta(fixture(protocol));
    EXPECT_EQ(tokenizer->vocab_size(), 10) << protocol;
    std::vector<std::int32_t> ids;
    tokenizer->encode("\n !\\aboé€😀", ids);
    EXPECT_THAT(ids, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)) << protocol;
  }
}

// Every prefix and every change of one byte is either read or refused.
TEST(NanoGptMeta, SurvivesEveryMutation) {
  const TempFolder folder;
  const auto read = [&](const std::string& bytes) {
    try {
      return read_nanogpt_meta(folder.write("meta.pkl", bytes))->vocab_size();
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("meta.pkl"));
      return std::int64_t{-1};
    }
  };
  for (const int protocol : {0, 2, 4}) {
    const auto good = read_file(fixture(protocol));
    for (std::size_t i = 0; i < good.size(); ++i) {
      EXPECT_EQ(read(good.substr(0, i)), -1);
      for (const int change : {1, 2, 0x10, 0x80, 0xff}) {
        auto bad = good;
        bad[i] = static_cast<char>(bad[i] ^ change);
        EXPECT_LE(read(bad), 10);
      }
    }
  }
}

TEST(NanoGptMeta, SaysWhatItLacks) {
  const TempFolder folder;
  const auto error = [&](const std::string& bytes) {
    return user_error([&] { read_nanogpt_meta(folder.write("meta.pkl", bytes)); });
  };
  const auto with = [](const std::string& size, const std::string& itos, const std::string& stoi) {
    return "}(\x8c\x0avocab_sizeK" + size + "\x8c\x04itos}(" + itos + "u\x8c\x04stoi}(" + stoi + "uu.";
  };
  const auto good = with("\x02",
                         "K\0\x8c\x01"
                         "aK\x01\x8c\x01"
                         "b"s,
                         "\x8c\x01"
                         "aK\0\x8c\x01"
                         "bK\x01"s);
  EXPECT_EQ(read_nanogpt_meta(folder.write("meta.pkl", good))->vocab_size(), 2);
  EXPECT_THAT(error("K\x01."),
              AllOf(HasSubstr("meta.pkl: it holds no dictionary"), HasSubstr("vocab_size, itos and stoi")));
  EXPECT_THAT(error("}."), HasSubstr("it has no \"vocab_size\""));
  EXPECT_THAT(error(with("\x00"s, "", "")), HasSubstr("\"vocab_size\" is 0"));
  EXPECT_THAT(error(with("\x02",
                         "K\0\x8c\x01"
                         "a"s,
                         "\x8c\x01"
                         "aK\0"s)),
              HasSubstr("no character for the token 1"));
  EXPECT_THAT(error(with("\x01",
                         "K\x01\x8c\x01"
                         "a",
                         "")),
              HasSubstr("outside the vocabulary"));
  EXPECT_THAT(error(with("\x01", "K\0\x8c\x03the"s, "\x8c\x03theK\0"s)), HasSubstr("not one character"));
  EXPECT_THAT(error(with("\x01",
                         "K\0\x8c\x01"
                         "a"s,
                         "\x8c\x01"
                         "bK\0"s)),
              HasSubstr("different characters"));
  EXPECT_THAT(error(with("\x02",
                         "K\0\x8c\x01"
                         "aK\x01\x8c\x01"
                         "a"s,
                         "\x8c\x01"
                         "aK\0"s)),
              HasSubstr("twice"));
  EXPECT_THAT(error(with("\x01", "K\0\x8c\x03\xed\xa0\x80"s, "\x8c\x03\xed\xa0\x80K\0"s)),
              HasSubstr("not one character"));
}

}  // namespace
}  // namespace shoal
