// Tables of words, and counting on several threads.
#include "data/word_counter.h"

#include <gmock/gmock.h>

#include <map>

namespace shoal {
namespace {

using Counts = std::map<std::string, std::int64_t>;

Counts counts_of(const WordTable& table) {
  Counts counts;
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_TRUE(counts.emplace(table.word(i), table.count(i)).second) << table.word(i) << " twice";
  }
  return counts;
}

class Random {
 public:
  std::uint32_t below(std::uint32_t bound) { return ((state_ = state_ * 1664525 + 1013904223) >> 8) % bound; }

 private:
  std::uint32_t state_ = 11;
};

TEST(WordTable, CountsWhatAMapCounts) {
  Random random;
  WordTable one, other;
  Counts expected;
  for (int i = 0; i < 60'000; ++i) {
    std::string word;
    for (auto length = random.below(4); length > 0; --length) word += static_cast<char>(random.below(50));
    const std::int64_t count = 1 + random.below(3);
    (i % 2 == 0 ? one : other).add(word, count);
    expected[word] += count;
  }
  one.add(other);
  EXPECT_GT(one.size(), 10'000u);  // so it has grown
  EXPECT_EQ(counts_of(one), expected);
  std::size_t bytes = 0;
  for (const auto& [word, count] : expected) bytes += word.size();
  EXPECT_EQ(one.text_bytes(), bytes);
}

TEST(WordTable, NumbersWordsInTheOrderOfTheirComing) {
  WordTable table;
  for (const char* word : {"b", "a", "b", "", "ab"}) table.add(word);
  ASSERT_EQ(table.size(), 4u);
  EXPECT_EQ(table.word(0), "b");
  EXPECT_EQ(table.count(0), 2);
  EXPECT_EQ(table.word(2), "");
  EXPECT_EQ(table.word(3), "ab");
}

TEST(WordCounter, CountsThePiecesOfGpt2) {
  WordCounter counter(1);
  counter.add("It's a cat,  a");
  counter.add("a\n");
  EXPECT_EQ(counts_of(counter.finish()),
            (Counts{{"It", 1}, {"'s", 1}, {" a", 2}, {" cat", 1}, {",", 1}, {" ", 1}, {"a", 1}, {"\n", 1}}));
}

// More than one batch, so that several threads count and their tables are merged.
TEST(WordCounter, ThreadsAndPiecesDoNotChangeCounts) {
  Random random;
  std::string text;
  while (text.size() < 5 << 20) {
    for (auto length = 1 + random.below(5); length > 0; --length)
      text += static_cast<char>('a' + random.below(12));
    text += random.below(9) == 0 ? "\n" : " ";
  }
  const auto count = [&](int threads, std::size_t piece) {
    WordCounter counter(threads);
    for (std::size_t at = 0; at < text.size();) {
      // A text ends before a space, which is where documents are cut.
      const std::size_t end = std::min(text.find(' ', std::min(at + piece, text.size())), text.size());
      counter.add(std::string_view(text).substr(at, end - at));
      at = end;
    }
    return counts_of(counter.finish());
  };
  const auto expected = count(1, text.size());
  EXPECT_GT(expected.size(), 50'000u);
  EXPECT_TRUE(count(3, 1 << 20) == expected);
  EXPECT_TRUE(count(4, 70'000) == expected);
}

}  // namespace
}  // namespace shoal
