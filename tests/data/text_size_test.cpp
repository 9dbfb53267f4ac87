#include "data/text_size.h"

#include <gtest/gtest.h>

#include "data/temp_folder.h"

namespace shoal {
namespace {

TextSize size_of_text(const std::vector<std::uint16_t>& ids) {
  const test::TempFolder folder;
  return measure_text(TokenFile(folder.write_ids("val.bin", ids), 2), *make_byte_tokenizer());
}

std::vector<std::uint16_t> bytes_as_ids(std::string_view text) { return {text.begin(), text.end()}; }

// The first token is no target, and a word may go on behind the piece that is decoded at once.
TEST(TextSize, CountsBytesAndWordsOfTheTargets) {
  const auto size = size_of_text(bytes_as_ids("x two  words\tand\nmore "));
  EXPECT_EQ(size.bytes, 21);
  EXPECT_EQ(size.words, 4);
  std::string text = "x";
  for (int i = 0; i < 30'000; ++i) text += " word";
  EXPECT_EQ(size_of_text(bytes_as_ids(text)).words, 30'000);
  EXPECT_EQ(size_of_text(bytes_as_ids(text)).bytes, 150'000);
}

TEST(TextSize, EndOfTextPartsWordsAndHasNoBytes) {
  auto ids = bytes_as_ids("xone");
  ids.push_back(256);
  ids.push_back(256);
  for (const char c : std::string("two")) ids.push_back(static_cast<std::uint16_t>(c));
  EXPECT_EQ(size_of_text(ids).words, 2);
  EXPECT_EQ(size_of_text(ids).bytes, 6);
}

}  // namespace
}  // namespace shoal
