// Byte-pair encoding as it is learnt: against counting every pair again for every merge, and against Hugging
// Face's tokenizers (make_bpe_fixture.py).
#include "data/bpe_trainer.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

#include "data/bpe_tokenizer.h"
#include "data/byte_alphabet.h"
#include "data/temp_folder.h"
#include "data/word_counter.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Merges = std::vector<BpeMerge>;
using Words = std::map<std::string, std::int64_t>;

const std::filesystem::path kFixtures = SHOAL_SOURCE_DIR "/tests/data/fixtures";

WordTable table_of(const Words& words) {
  WordTable table;
  for (const auto& [word, count] : words) table.add(word, count);
  return table;
}

// The definition: count all pairs, merge the best one in every word from left to right, and again.
Merges learn_slowly(const Words& words, std::size_t most) {
  const ByteAlphabet alphabet;
  std::vector<std::pair<std::vector<std::int32_t>, std::int64_t>> tokens;
  for (const auto& [word, count] : words) {
    tokens.push_back({{}, count});
    for (const char byte : word) {
      tokens.back().first.push_back(alphabet.id_of_byte[static_cast<std::uint8_t>(byte)]);
    }
  }
  Merges merges;
  while (merges.size() < most) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counts;
    for (const auto& [word, count] : tokens) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) counts[{word[i], word[i + 1]}] += count;
    }
    // The first of the largest, in the order of the ids.
    const auto best = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == counts.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    const auto result = static_cast<std::int32_t>(256 + merges.size());
    merges.push_back({left, right});
    for (auto& [word, count] : tokens) {
      std::vector<std::int32_t> merged;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool joined = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
        merged.push_back(joined ? result : word[i]);
        i += joined ? 1 : 0;
      }
      word = merged;
    }
  }
  return merges;
}

std::string describe(const Words& words) {
  std::string text;
  for (const auto& [word, count] : words) text += fmt::format("{} x {}, ", word, count);
  return text;
}

// Few letters make runs, ties and tokens that are merged with themselves.
TEST(BpeTrainer, LearnsWhatCountingAgainLearns) {
  std::uint32_t state = 3;
  const auto below = [&](std::uint32_t bound) {
    return ((state = state * 1664525 + 1013904223) >> 8) % bound;
  };
  for (int round = 0; round < 400; ++round) {
    const auto letters = 1 + below(4);
    Words words;
    for (auto left = 1 + below(12); left > 0; --left) {
      std::string word;
      for (auto length = below(30); length > 0; --length) word += static_cast<char>('a' + below(letters));
      words[word] += 1 + below(4);
    }
    const auto most = 1 + below(40);
    ASSERT_EQ(train_bpe(table_of(words), most), learn_slowly(words, most)) << describe(words);
  }
}

TEST(BpeTrainer, EquallyFrequentPairsAreMergedInTheOrderOfTheirIds) {
  const auto id = [](char byte) { return ByteAlphabet().id_of_byte[static_cast<std::uint8_t>(byte)]; };
  // The space is spelled by a character after all letters.
  EXPECT_THAT(train_bpe(table_of({{"ba", 2}, {"ac", 2}, {"ab", 2}, {" a", 2}}), 9),
              ElementsAre(BpeMerge{id('a'), id('b')}, BpeMerge{id('a'), id('c')}, BpeMerge{id('b'), id('a')},
                          BpeMerge{id(' '), id('a')}));
}

TEST(BpeTrainer, StopsWhereNoPairComesTwice) {
  EXPECT_THAT(train_bpe(table_of({{"abcd", 1}}), 10), IsEmpty());
  EXPECT_THAT(train_bpe(table_of({{"a", 9}, {"", 3}}), 10), IsEmpty());
  EXPECT_THAT(train_bpe(WordTable(), 10), IsEmpty());
  EXPECT_EQ(train_bpe(table_of({{"abcd", 2}}), 10).size(), 3u);
  EXPECT_EQ(train_bpe(table_of({{"abcd", 2}}), 2).size(), 2u);
}

TEST(BpeTrainer, TokensHaveAtMost1024Bytes) {
  const Words words = {{std::string(5000, '='), 3}};
  const auto merges = train_bpe(table_of(words), 100);
  EXPECT_EQ(merges.size(), 13u);  // 2, 4, ... 1024 bytes; and three join the rest, 512 + 256 + 128 + 8
  const auto tokenizer = make_bpe_tokenizer(merges_text(merges), "test");
  for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id)
    EXPECT_LE(tokenizer->decode({&id, 1}).size(), 1024u);
}

TEST(BpeTrainer, ReportsEveryMerge) {
  std::vector<std::size_t> made;
  train_bpe(table_of({{"abcd", 2}}), 10, [&](std::size_t count) { made.push_back(count); });
  EXPECT_THAT(made, ElementsAre(1, 2, 3));
}

// Every merge visits the places that it changes. Visiting all of a word of 6 MB for each of 8,000 merges
// would take minutes; the time limit is generous, for sanitizers and busy machines.
TEST(BpeTrainer, ALongWordTakesNoLonger) {
  std::string letters;
  std::uint32_t state = 1;
  while (letters.size() < 6'000'000) {
    state = state * 1664525 + 1013904223;
    letters += "abcdefghijklmnopqrstuvwxyz"[(state >> 16) % 26];
  }
  WordTable table;
  table.add(letters);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(train_bpe(std::move(table), 8000).size(), 8000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// The fixture has <|endoftext|> first, as tokenizers' trainer numbers it.
TEST(BpeTrainer, LearnsWhatHuggingFaceLearns) {
  const auto text = test::read_file(kFixtures / "gpt2_tokens.jsonl");
  const auto theirs = load_bpe_tokenizer(kFixtures / "bpe");
  EXPECT_EQ(theirs->end_of_text(), 0);
  for (const int threads : {1, 3}) {
    WordCounter counter(threads);
    counter.add(text);
    const auto merges = train_bpe(counter.finish(), static_cast<std::size_t>(theirs->vocab_size() - 257));
    const auto ours = make_bpe_tokenizer(merges_text(merges), "test", SpecialTokens{{"<|endoftext|>", 0}});
    EXPECT_EQ(ours->to_json(), theirs->to_json());
  }
  const auto ids = nlohmann::json::parse(test::read_file(kFixtures / "bpe/ids.json"));
  std::vector<std::int32_t> encoded;
  theirs->encode(ids["text"].get<std::string>(), encoded);
  EXPECT_EQ(encoded, ids["ids"].get<std::vector<std::int32_t>>());
}

}  // namespace
}  // namespace shoal
