#include "data/pickle.h"

#include <gmock/gmock.h>

#include "data/nanogpt_meta.h"
#include "data/temp_folder.h"

namespace shoal {
namespace {

using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::read_file;
using ::testing::StartsWith;
using testing::TempFolder;
using testing::user_error;

std::filesystem::path fixture(int protocol) {
  return std::filesystem::path(SHOAL_SOURCE_DIR "/tests/data/fixtures/nanogpt") /
         ("meta-" + std::to_string(protocol) + ".pkl");
}

std::string error_of(const std::string& bytes) {
  return user_error([&] { Pickle(bytes, "meta.pkl"); });
}

TEST(Pickle, ReadsEveryProtocol) {
  for (int protocol = 0; protocol <= 5; ++protocol) {
    const auto tokenizer = read_nanogpt_meta(fixture(protocol));
    EXPECT_EQ(tokenizer->vocab_size(), 10) << protocol;
    std::vector<std::int32_t> ids;
    tokenizer->encode("\n !\\aboé€😀", ids);
    EXPECT_THAT(ids, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)) << protocol;
  }
}

TEST(Pickle, ReadsEveryWidthOfIntegersAndStrings) {
  const auto value = [](const std::string& bytes) { return Pickle(bytes + ".", "x").root(); };
  EXPECT_EQ(value("K\xff").integer, 255);
  EXPECT_EQ(value("M\x01\x02").integer, 0x201);
  EXPECT_EQ(value("J\xfe\xff\xff\xff").integer, -2);
  EXPECT_EQ(value("I-17\n").integer, -17);
  EXPECT_EQ(value("L123456789012L\n").integer, 123456789012);
  EXPECT_EQ(value("\x8a\x01\x80").integer, -128);
  EXPECT_EQ(value("\x8a\x02\x80\x00"s).integer, 128);
  EXPECT_EQ(value("\x8a\x00"s).integer, 0);
  EXPECT_EQ(value("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f").integer, INT64_MAX);
  EXPECT_EQ(value("\x8c\x02hi").string, "hi");
  EXPECT_EQ(value("X\x02\0\0\0hi"s).string, "hi");
  EXPECT_EQ(value("\x8d\x02\0\0\0\0\0\0\0hi"s).string, "hi");
  EXPECT_EQ(value("Va\\u20ac\\U0001f600\xe9\n").string, "a€😀é");
}

TEST(Pickle, TheLastValueOfAKeyCounts) {
  const Pickle pickle("}(\x8c\x01xK\x01\x8c\x01xK\x02u.", "x");
  EXPECT_EQ(pickle.find(pickle.root(), "x")->integer, 2);
  EXPECT_EQ(pickle.find(pickle.root(), "y"), nullptr);
}

// A pickle that would run a command if Python read it.
TEST(Pickle, RefusesCodeByTheNameOfTheOpcode) {
  EXPECT_THAT(error_of("cos\nsystem\n(S'echo owned'\ntR."),
              AllOf(StartsWith("meta.pkl: "), HasSubstr("GLOBAL"), HasSubstr("no code is executed")));
  EXPECT_THAT(error_of("\x80\x04\x8c\x02os\x8c\x06system\x93."), HasSubstr("STACK_GLOBAL"));
  EXPECT_THAT(error_of("]."), HasSubstr("EMPTY_LIST"));
  EXPECT_THAT(error_of("G\0\0\0\0\0\0\0\0."s), HasSubstr("BINFLOAT"));
  EXPECT_THAT(error_of("\x7f"), HasSubstr("0x7F is not an opcode"));
}

TEST(Pickle, RefusesDamage) {
  for (const auto& bytes : {""s, "}"s, "K"s, "X\xff\xff\xff\xff"s, "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s,
                            "Iab"s, "\x95\xff\xff\xff\xff\xff\xff\xff\xff."s}) {
    EXPECT_THAT(error_of(bytes), HasSubstr("ends too early")) << bytes;
  }
  for (const auto& bytes : {"."s, "(."s, "q\x01."s, "h\x01."s, "s."s, "K\x01s."s, "K\x01K\x02K\x03s."s, "u."s,
                            "d."s, "}(K\x01u."s, "}(}K\x01u."s, "(K\x01u."s, "}((u."s, "}(K\x01(u."s}) {
    EXPECT_THAT(error_of(bytes), HasSubstr("damaged")) << bytes;
  }
  EXPECT_THAT(error_of("\x80\x06."), HasSubstr("protocol 6"));
  EXPECT_THAT(error_of("I99999999999999999999\n."), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("Ione\n."), HasSubstr("an integer is expected"));
  EXPECT_THAT(error_of("\x8a\x09" + std::string(9, '\x01') + "."), HasSubstr("more than 8"));
  EXPECT_THAT(error_of("Va\\u20\n."), HasSubstr("escape"));
}

TEST(Pickle, ADictionaryWithinItselfIsNoTrap) {
  const Pickle pickle("}q\x01(\x8c\x04selfh\x01u.", "x");
  EXPECT_EQ(pickle.find(pickle.root(), "self"), &pickle.root());
}

// Every prefix and every change of one byte is either read or refused.
TEST(Pickle, SurvivesEveryMutation) {
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
