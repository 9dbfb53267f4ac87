// Tests of the datasets that prepare() makes: counts, truncation, entropy, widths of tokens.
#include "data/prepare.h"

#include <gmock/gmock.h>

#include "data/plays.h"
#include "data/prepare_fixture.h"

namespace shoal {
namespace {

using test::read_file;
using test::user_error;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(PrepareTest, ShakespeareCharHasTheKnownCounts) {
  SHOAL_NEEDS_SHARED("tinyshakespeare.txt");
  const auto meta = prepare(of("shakespeare-char"));
  EXPECT_EQ(meta.splits.at("train").tokens, 1'003'854);
  EXPECT_EQ(meta.splits.at("val").tokens, 111'540);
  EXPECT_EQ(meta.vocab_size, 65);
  EXPECT_EQ(decoded("train") + decoded("val"), read_file(test::shared_data() / "tinyshakespeare.txt"));
  const Dataset data(folder / "out");
  EXPECT_NO_THROW(data.verify());
  EXPECT_NO_THROW(data.verify_checksums());
  EXPECT_THAT(data.meta()->sources, ElementsAre(HasSubstr("tinyshakespeare")));
}

TEST_F(PrepareTest, ShakespeareHasTheKnownCounts) {
  SHOAL_NEEDS_SHARED("gpt2/encoder.json");
  const auto meta = prepare(of("shakespeare"));
  EXPECT_EQ(meta.splits.at("train").tokens, 301'966);
  EXPECT_EQ(meta.splits.at("val").tokens, 36'059);
  EXPECT_EQ(meta.vocab_size, 50257);
  EXPECT_EQ(decoded("train") + decoded("val"), read_file(test::shared_data() / "tinyshakespeare.txt"));
}

// The share is taken as in minGPT: before the split and before the vocabulary is made.
TEST_F(PrepareTest, TruncationComesFirst) {
  auto options =
      text({folder.write("a.txt", "äbcdefghij"), folder.write("b.txt", "klmnopqrstuvwxyz")}, "char");
  options.inputs.pop_back();
  options.truncate = 0.5;
  auto meta = prepare(options);
  EXPECT_EQ(decoded("train"), "äbcd");
  EXPECT_EQ(decoded("val"), "e");
  EXPECT_EQ(meta.vocab_size, 5);
  EXPECT_EQ(meta.split_rule,
            "the first 50 % of the characters are used, the last 10 % of the characters are val");

  options = text({folder / "a.txt", folder / "b.txt"}, "bytes");
  options.truncate = 0.6;
  prepare(options);
  EXPECT_EQ(decoded("train"), "äbcdefghi<|endoftext|>klmn");
  EXPECT_EQ(decoded("val"), "j<|endoftext|>o");
  options.val = {folder.write("val.txt", "untouched")};
  prepare(options);
  EXPECT_EQ(decoded("train"), "äbcdefghij<|endoftext|>klmno<|endoftext|>");
  EXPECT_EQ(decoded("val"), "untouched<|endoftext|>");

  options.truncate = 0.01;
  EXPECT_THAT(user_error([&] { prepare(options); }),
              HasSubstr("a share of 0.01 leaves none of the 26 characters"));
  options.truncate = 0;
  EXPECT_THAT(user_error([&] { prepare(options); }), HasSubstr("a share of 0 of the text is not above 0"));
  options = of("synthetic");
  options.truncate = 0.5;
  EXPECT_THAT(user_error([&] { prepare(options); }), HasSubstr("synthetic cannot be truncated"));
}

TEST_F(PrepareTest, SyntheticKnowsItsEntropy) {
  auto options = of("synthetic");
  options.size = 300'000;
  const auto meta = prepare(options);
  const auto grammar = make_play_grammar();
  EXPECT_EQ(meta.entropy_per_token, grammar->entropy_rate());
  const Dataset data(folder / "out");
  EXPECT_EQ(data.entropy_per_token(), grammar->entropy_rate());
  std::int64_t characters = 0;
  for (const std::string split : {"train", "val"}) {
    // The facts of each split in meta.json equal those found by reading it.
    const auto plays = decoded(split);
    characters += static_cast<std::int64_t>(plays.size());
    EXPECT_NEAR(grammar->information(plays).value() / static_cast<double>(plays.size()),
                *data.split_entropy(split), 1e-12);
    EXPECT_NEAR(*data.split_entropy(split), grammar->entropy_rate(), 0.02);
  }
  EXPECT_GE(characters, options.size);
  EXPECT_LT(characters, options.size + 20'000);  // whole plays
  const auto checksum = meta.splits.at("train").xxh64;
  EXPECT_EQ(prepare(options).splits.at("train").xxh64, checksum);
  options.seed = 2;
  EXPECT_NE(prepare(options).splits.at("train").xxh64, checksum);
}

TEST_F(PrepareTest, ALargeVocabularyTakesWiderTokens) {
  std::string content;
  for (char32_t c = 0x10000; c < 0x20010; ++c) {  // 65,552 characters of four bytes
    for (int shift : {18, 12, 6, 0}) {
      const auto bits = static_cast<unsigned>(c >> shift & 0x3f);
      content += static_cast<char>(shift == 18 ? 0xf0 | bits : 0x80 | bits);
    }
  }
  prepare(text({folder.write("a.txt", content)}, "char"));
  const Dataset data(folder / "out");
  EXPECT_EQ(data.train().bytes_per_token(), 4);
  EXPECT_EQ(decoded("train") + decoded("val"), content);
}

}  // namespace
}  // namespace shoal
