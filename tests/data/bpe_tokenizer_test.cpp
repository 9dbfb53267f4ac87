// Byte-level BPE: GPT-2's, compared with the output of other implementations in a fixture made by
// make_gpt2_fixture.py, and others of its kind.
#include <gmock/gmock.h>
#include <utf8proc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/utf8.h"
#include "data/bpe_tokenizer.h"
#include "data/gpt2_split.h"
#include "data/stored_tokenizer.h"
#include "data/temp_folder.h"

namespace shoal {
namespace {

using shoal::test::read_file;
using shoal::test::shared_data;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

const std::filesystem::path kFixture = SHOAL_SOURCE_DIR "/tests/data/fixtures/gpt2_tokens.jsonl";

// FNV-1a over 32-bit words, as in the fixture.
template <typename Values>
std::string fnv(const Values& values) {
  std::uint64_t result = 0xCBF29CE484222325;
  for (const auto value : values) result = (result ^ static_cast<std::uint32_t>(value)) * 0x100000001B3;
  return fmt::format("{:016x}", result);
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string repeat(const std::string& unit, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += unit;
  return text;
}

// The rule of the fixture's script: mixed letters, no space.
std::string letters(int count) {
  std::string text;
  std::uint32_t state = 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    text.push_back("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[(state >> 16) % 52]);
  }
  return text;
}

std::vector<nlohmann::json> fixture_lines_with(const char* key) {
  std::ifstream file(kFixture);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains(key)) lines.push_back(std::move(json));
  }
  return lines;
}

class Gpt2Tokenizer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (std::filesystem::exists(shared_data() / "gpt2")) shared_ = load_bpe_tokenizer(shared_data() / "gpt2");
  }
  static void TearDownTestSuite() { shared_.reset(); }
  void SetUp() override { SHOAL_NEEDS_SHARED("gpt2"); }

  static Ids encode(std::string_view text) {
    Ids ids;
    shared_->encode(text, ids);
    return ids;
  }

  static inline std::unique_ptr<Tokenizer> shared_;
};

TEST_F(Gpt2Tokenizer, HasGpt2sVocabulary) {
  EXPECT_EQ(shared_->name(), "gpt2");
  EXPECT_EQ(shared_->vocab_size(), 50257);
  EXPECT_EQ(shared_->end_of_text(), 50256);
  EXPECT_EQ(shared_->decode(Ids{15496, 995, 50256}), "Hello world<|endoftext|>");
}

TEST_F(Gpt2Tokenizer, EqualsTheReferenceOnTexts) {
  const auto lines = fixture_lines_with("text");
  ASSERT_GE(lines.size(), 2000u);
  for (const auto& line : lines) {
    const std::string text = line["text"];
    ASSERT_EQ(encode(text), line["ids"].get<Ids>()) << line;
    ASSERT_EQ(shared_->decode(encode(text)), text);
  }
}

TEST_F(Gpt2Tokenizer, EqualsTheReferenceOnBytesThatAreNotUtf8) {
  const auto lines = fixture_lines_with("hex");
  ASSERT_GE(lines.size(), 400u);
  for (const auto& line : lines) {
    const std::string text = from_hex(line["hex"]);
    ASSERT_EQ(encode(text), line["ids"].get<Ids>()) << line;
    ASSERT_EQ(shared_->decode(encode(text)), text);
  }
}

// A quadratic merge would take minutes. The time limit is generous, for sanitizers and busy machines.
TEST_F(Gpt2Tokenizer, LongTextsWithoutSpacesTakeNearLinearTime) {
  auto lines = fixture_lines_with("repeat");
  lines.push_back(fixture_lines_with("letters").at(0));
  ASSERT_EQ(lines.size(), 6u);
  for (const auto& line : lines) {
    const std::string text =
        line.contains("letters") ? letters(line["letters"]) : repeat(line["repeat"], line["times"]);
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = encode(text);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2)) << line;
    EXPECT_EQ(ids.size(), line["count"].get<std::size_t>()) << line;
    EXPECT_EQ(fnv(ids), line["fnv"].get<std::string>()) << line;
    EXPECT_TRUE(shared_->decode(ids) == text);
  }
}

TEST_F(Gpt2Tokenizer, EveryByteRoundTrips) {
  for (int i = 0; i < 256; ++i) {
    const std::string byte(1, static_cast<char>(i));
    EXPECT_EQ(encode(byte).size(), 1u);
    EXPECT_EQ(shared_->decode(encode(byte)), byte);
  }
}

// Bytes with few values make long pieces, with many values short ones; both must decode to the same bytes.
TEST_F(Gpt2Tokenizer, RandomBytesRoundTrip) {
  std::uint32_t state = 7;
  const auto next = [&] { return (state = state * 1664525 + 1013904223) >> 16; };
  for (int i = 0; i < 2000; ++i) {
    const std::uint32_t first = next() % 256, values = 1 + next() % 256;
    std::string text;
    for (std::uint32_t length = next() % 200; length > 0; --length) {
      text.push_back(static_cast<char>(first + next() % values));
    }
    ASSERT_EQ(shared_->decode(encode(text)), text);
  }
}

// All tokens round-trip, except for 17 that contain a whole character and a part of another, which the split
// separates.
TEST_F(Gpt2Tokenizer, TokensEncodeToThemselves) {
  const Gpt2Splitter splitter;
  int split = 0;
  for (std::int32_t id = 0; id < 50256; ++id) {
    const std::string text = shared_->decode({&id, 1});
    if (splitter.piece_end(text, 0) != text.size()) {
      ++split;
      continue;
    }
    ASSERT_THAT(encode(text), ElementsAre(id)) << text;
  }
  EXPECT_EQ(split, 17);
}

TEST_F(Gpt2Tokenizer, SpecialTokensInATextAreText) {
  const Ids ids = encode("<|endoftext|>");
  EXPECT_THAT(ids, ::testing::Not(::testing::Contains(50256)));
  EXPECT_EQ(shared_->decode(ids), "<|endoftext|>");
}

TEST_F(Gpt2Tokenizer, JsonKeepsAllOfIt) {
  const auto copy = tokenizer_from_json(nlohmann::json::parse(shared_->to_json().dump()), "meta.json");
  const std::string text = read_file(kFixture);
  Ids ids;
  copy->encode(text, ids);
  EXPECT_EQ(copy->vocab_size(), 50257);
  EXPECT_EQ(ids, encode(text));
}

TEST_F(Gpt2Tokenizer, GoesOutAsTheFilesThatItIsReadFrom) {
  const shoal::test::TempFolder folder;
  const auto files = bpe_files(*shared_);
  EXPECT_EQ(files.size(), 2);
  for (const auto& [name, text] : files) folder.write(name, text);
  EXPECT_EQ(load_bpe_tokenizer(folder.path())->to_json(), shared_->to_json());
}

TEST_F(Gpt2Tokenizer, ThreadsShareOne) {
  const std::string text = read_file(kFixture);
  const Ids expected = encode(text);
  std::vector<Ids> results(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : results) threads.emplace_back([&] { shared_->encode(text, ids); });
  }
  for (const Ids& ids : results) EXPECT_EQ(ids, expected);
}

TEST_F(Gpt2Tokenizer, TinyShakespeareHasItsKnownCounts) {
  SHOAL_NEEDS_SHARED("tinyshakespeare.txt");
  const std::string text = read_file(shared_data() / "tinyshakespeare.txt");
  ASSERT_EQ(text.size(), 1'115'394u);  // all ASCII: characters are bytes
  const auto cut = static_cast<std::size_t>(static_cast<double>(text.size()) * 0.9);
  const std::string_view train = std::string_view(text).substr(0, cut),
                         val = std::string_view(text).substr(cut);
  EXPECT_EQ(encode(train).size(), 301'966u);
  EXPECT_EQ(encode(val).size(), 36'059u);
  const auto by_char = make_char_tokenizer(text);
  Ids train_ids, val_ids;
  by_char->encode(train, train_ids);
  by_char->encode(val, val_ids);
  EXPECT_EQ(by_char->vocab_size(), 65);
  EXPECT_EQ(train_ids.size(), 1'003'854u);
  EXPECT_EQ(val_ids.size(), 111'540u);
}

class BpeFiles : public ::testing::Test {
 protected:
  // A vocab.json for `first`, the bytes, and `tokens`.
  static std::string vocab_json(const std::vector<std::string>& tokens,
                                const std::vector<std::string>& first = {}) {
    nlohmann::json ids;
    int id = 0;
    const auto add = [&](int code_point) {
      std::string spelled;
      append_utf8(spelled, static_cast<char32_t>(code_point));
      ids[spelled] = id++;
    };
    for (const std::string& token : first) ids[token] = id++;
    for (int c = 0x21; c <= 0x7E; ++c) add(c);
    for (int c = 0xA1; c <= 0xFF; ++c) {
      if (c != 0xAD) add(c);
    }
    for (int c = 0x100; c < 0x144; ++c) add(c);
    for (const std::string& token : tokens) ids[token] = id++;
    return ids.dump();
  }

  std::unique_ptr<Tokenizer> load() const { return load_bpe_tokenizer(folder_.path()); }
  std::string error() const {
    return shoal::test::user_error([&] { load(); });
  }

  shoal::test::TempFolder folder_;
};

TEST_F(BpeFiles, BothPairsOfNamesAreRead) {
  const auto vocab = vocab_json({"Ġa", "Ġab", "<|endoftext|>"});
  const std::string merges = "#version: 0.2\r\nĠ a\r\nĠa b\r\n";
  folder_.write("hf/vocab.json", vocab);
  folder_.write("hf/merges.txt", merges);
  folder_.write("gpt2/encoder.json", vocab);
  folder_.write("gpt2/vocab.bpe", merges);
  for (const char* name : {"hf", "gpt2"}) {
    const auto tokenizer = load_bpe_tokenizer(folder_ / name);
    EXPECT_EQ(tokenizer->name(), "bpe");
    EXPECT_EQ(tokenizer->vocab_size(), 259);
    EXPECT_EQ(tokenizer->end_of_text(), 258);
    Ids ids;
    tokenizer->encode(" abc a", ids);
    EXPECT_THAT(ids, ElementsAre(257, 66, 256));  // "c" is the 67th visible character
  }
}

// Hugging Face's trainers put them first.
TEST_F(BpeFiles, SpecialTokensMayBeAnywhere) {
  folder_.write("merges.txt", "a b\nc d\n");
  folder_.write("vocab.json", vocab_json({"ab", "<mask>", "cd"}, {"<s>", "<pad>", "</s>"}));
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  const auto copy = tokenizer_from_json(nlohmann::json::parse(tokenizer->to_json().dump()), "meta.json");
  const auto files = bpe_files(*tokenizer);
  for (const auto& [name, text] : files) folder_.write("out/" + name, text);
  const auto again = load_bpe_tokenizer(folder_ / "out");
  for (const auto* each : {tokenizer.get(), copy.get(), again.get()}) {
    Ids ids{1};
    each->encode("cdab!<pad>", ids);
    EXPECT_THAT(std::span(ids).first(4), ElementsAre(1, 261, 259, 3));  // "!" is the first byte
    EXPECT_EQ(each->decode(ids), "<pad>cdab!<pad>");
    EXPECT_EQ(each->decode(Ids{0, 260, 2}), "<s><mask></s>");
    EXPECT_EQ(each->to_json(), tokenizer->to_json());
    EXPECT_EQ(each->end_of_text(), 2);
  }
  EXPECT_THAT(shoal::test::user_error([&] { tokenizer->decode(Ids{262}); }), HasSubstr("token 262"));

  folder_.write("vocab.json", vocab_json({"ab", "cd"}));
  EXPECT_EQ(load()->end_of_text(), std::nullopt);
  EXPECT_EQ(load()->vocab_size(), 258);
  folder_.write("vocab.json", vocab_json({"ab", "cd", "</s>", "<|endoftext|>"}));
  EXPECT_EQ(load()->end_of_text(), 259);
}

TEST_F(BpeFiles, MissingFilesAreNamed) {
  EXPECT_THAT(error(),
              AllOf(HasSubstr(folder_.path().string()), HasSubstr("vocab.bpe"), HasSubstr("merges.txt")));
  EXPECT_THAT(error(), ::testing::Not(HasSubstr("tokenizer.json")));
  folder_.write("tokenizer.json", R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})");
  EXPECT_THAT(error(), HasSubstr("tokenizer.json').model.save('" + folder_.path().string() + "')"));
  folder_.write("vocab.bpe", "a b\n");
  EXPECT_THAT(error(), AllOf(HasSubstr(folder_.path().string()), HasSubstr("encoder.json")));
}

// vocab.json and merges.txt do not say how a text is cut before it is merged; tokenizer.json beside them
// does.
TEST_F(BpeFiles, ATokenizerJsonHasGpt2sSplit) {
  folder_.write("vocab.json", vocab_json({"ab"}));
  folder_.write("merges.txt", "a b\n");
  const auto with = [&](const std::string& split, const std::string& normalizer = "null") {
    folder_.write("tokenizer.json",
                  R"({"normalizer": )" + normalizer + R"(, "pre_tokenizer": )" + split + "}");
  };
  const std::string gpt2 = R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})";
  const std::vector<std::string> same = {
      gpt2, R"({"type": "Sequence", "pretokenizers": [)" + gpt2 + "]}",
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})"};
  for (const auto& split : same) {
    with(split);
    EXPECT_EQ(load()->vocab_size(), 257) << split;
  }
  folder_.write("tokenizer.json", R"({"pre_tokenizer": )" + gpt2 + "}");  // without a normalizer
  EXPECT_EQ(load()->vocab_size(), 257);

  with(gpt2, R"({"type": "NFC"})");
  EXPECT_THAT(error(), AllOf(HasSubstr("tokenizer.json: its \"normalizer\" is not null"), HasSubstr("move")));
  const std::vector<std::string> others = {
      "null",
      "7",
      R"({"type": 7})",
      R"({"type": "Whitespace", "add_prefix_space": false})",
      R"({"type": "ByteLevel"})",
      R"({"type": "ByteLevel", "add_prefix_space": true})",
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})",
      R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, )" + gpt2 + "]}",
      R"({"type": "Sequence", "pretokenizers": []})",
      R"({"type": "Sequence", "pretokenizers": "x"})"};
  for (const auto& split : others) {
    with(split);
    EXPECT_THAT(error(), AllOf(HasSubstr("tokenizer.json: its \"pre_tokenizer\" is not GPT-2's"),
                               HasSubstr("move this file away")))
        << split;
  }
  with(std::string(100'000, '[') + std::string(100'000, ']'));
  EXPECT_THAT(error(), HasSubstr("tokenizer.json is damaged"));
  for (const char* damaged : {"{", "[]", R"({"a": 1e999})"}) {
    folder_.write("tokenizer.json", damaged);
    EXPECT_THAT(error(), HasSubstr("tokenizer.json is damaged")) << damaged;
  }
}

TEST_F(BpeFiles, DamagedMergesNameTheLine) {
  folder_.write("encoder.json", vocab_json({"ab", "<|endoftext|>"}));
  const auto with = [&](const char* merges) {
    folder_.write("vocab.bpe", merges);
    return error();
  };
  EXPECT_THAT(with("#version: 0.2\na b\nab\n"), AllOf(HasSubstr("vocab.bpe, line 3"), HasSubstr("\"ab\"")));
  EXPECT_THAT(with("a b\nab cd\n"), HasSubstr("line 2"));
  EXPECT_THAT(with("a b\na b\n"), AllOf(HasSubstr("line 2"), HasSubstr("already")));
  std::string doubling;
  for (std::string token = "a"; token.size() <= 1024; token += token) doubling += token + " " + token + "\n";
  EXPECT_THAT(with(doubling.c_str()), AllOf(HasSubstr("line 11"), HasSubstr("1024 bytes")));
  for (const char* half : {" a\n", "a \n", "a\n"})
    EXPECT_THAT(with(half), HasSubstr("is not a merge of two")) << half;
  EXPECT_THAT(with("#version: 0.2\n"), HasSubstr("0 merges"));
  EXPECT_THAT(with(""), HasSubstr("0 merges"));
}

TEST_F(BpeFiles, IdsMustBelongToTheMerges) {
  const std::string end = "<|endoftext|>";
  folder_.write("merges.txt", "a b\nc d\n");
  const auto with = [&](const std::string& ids) {
    folder_.write("vocab.json", ids);
    return error();
  };
  const auto whole = vocab_json({"ab", "cd", end});
  folder_.write("vocab.json", whole);
  EXPECT_EQ(load()->vocab_size(), 259);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    return with(text);
  };
  EXPECT_THAT(with(vocab_json({"ab", end})),
              AllOf(HasSubstr("vocab.json lacks \"cd\""), HasSubstr("belong")));
  EXPECT_THAT(with(vocab_json({"cd", "ab", end})),
              AllOf(HasSubstr("vocab.json"), HasSubstr("\"ab\" the id 257, which is not the place")));
  EXPECT_THAT(replaced("\"A\":32", "\"AA\":32"), AllOf(HasSubstr("lacks \"A\", the byte 0x41")));
  EXPECT_THAT(replaced("\"!\":0,", "\"!\":0,\"!\":0,"), HasSubstr("has \"!\" twice"));
  for (const char* damaged : {"{\"a\": ", "[0]", "7", "{\"!\": 0} x"}) {
    EXPECT_THAT(with(damaged), HasSubstr("damaged"));
  }
  EXPECT_THAT(replaced(":256", ":\"x\""), HasSubstr("\"ab\" the id \"x\""));
  EXPECT_THAT(replaced(":256", ":-1"), HasSubstr("\"ab\" the id -1"));
  EXPECT_THAT(replaced(":256", ":4294967296"), HasSubstr("\"ab\" the id 4294967296"));
  EXPECT_THAT(replaced(":258", ":259"), AllOf(HasSubstr(end), HasSubstr("259")));
  EXPECT_THAT(replaced(":258", ":257"), HasSubstr("the id"));
}

TEST(BpeTokenizer, SpecialIdsLeaveNoGap) {
  const auto error = [](const SpecialTokens& special) {
    return shoal::test::user_error([&] { make_bpe_tokenizer("a b\n", "FILE", special); });
  };
  EXPECT_THAT(error({{"x", 258}}), AllOf(HasSubstr("FILE"), HasSubstr("\"x\" has the id 258")));
  EXPECT_THAT(error({{"x", -1}}), HasSubstr("-1"));
  EXPECT_THAT(error({{"x", 3}, {"y", 3}}), AllOf(HasSubstr("\"x\" and \"y\""), HasSubstr("id 3")));
}

// "b c" comes first, so no text reaches "abc", as in Hugging Face's tokenizers.
TEST(BpeTokenizer, MergesByRankEvenWhereTheWholeWordIsAToken) {
  const auto tokenizer = make_bpe_tokenizer("b c\na b\nab c\nd e\nf g\nde fg\n", "FILE");
  const auto encode = [&](std::string_view text) {
    Ids ids;
    tokenizer->encode(text, ids);
    return ids;
  };
  const std::int32_t a = 64, space = 220, bc = 256;
  EXPECT_THAT(encode("abc"), ElementsAre(a, bc));
  EXPECT_THAT(encode(" abc"), ElementsAre(space, a, bc));
  EXPECT_THAT(encode("ab"), ElementsAre(257));
  EXPECT_THAT(encode("defg"), ElementsAre(261));
  EXPECT_EQ(tokenizer->decode(Ids{258}), "abc");
}

// The definition, one merge at a time. `merges` and the result are tokens' spellings.
std::vector<std::string> merged_by_rank(std::string_view text,
                                        const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> tokens;
  for (const char c : text) tokens.emplace_back(1, c);
  for (;;) {
    const auto first_pair = [&](const auto& merge) {
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        if (tokens[i] == merge.first && tokens[i + 1] == merge.second) return i;
      }
      return tokens.size();
    };
    const auto merge =
        std::ranges::find_if(merges, [&](const auto& each) { return first_pair(each) < tokens.size(); });
    if (merge == merges.end()) return tokens;
    const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(first_pair(*merge));
    *at += *std::next(at);
    tokens.erase(std::next(at));
  }
}

// Every word of up to eight letters, by random merges that no text has taught.
TEST(BpeTokenizer, EqualsTheDefinitionForAnyMerges) {
  std::uint32_t state = 1;
  const auto below = [&](std::size_t end) { return ((state = state * 1664525 + 1013904223) >> 16) % end; };
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> known = {"a", "b"};
    std::vector<std::pair<std::string, std::string>> merges;
    std::string lines;
    while (merges.size() < 12) {
      const auto left = known[below(known.size())], right = known[below(known.size())];
      if (std::ranges::count(known, left + right) > 0 || (left + right).size() > 8) continue;
      known.push_back(left + right);
      merges.emplace_back(left, right);
      lines += left + " " + right + "\n";
    }
    const auto tokenizer = make_bpe_tokenizer(lines, "FILE");
    for (unsigned word = 2; word < 512; ++word) {
      std::string text;
      for (unsigned bits = word; bits > 1; bits /= 2) text += bits % 2 == 0 ? 'a' : 'b';
      Ids ids;
      tokenizer->encode(text, ids);
      std::vector<std::string> tokens;
      for (const auto id : ids) tokens.push_back(tokenizer->decode(Ids{id}));
      ASSERT_EQ(tokens, merged_by_rank(text, merges)) << text << " with\n" << lines;
    }
  }
}

TEST(BpeTokenizer, FilesAreOnlyForBpe) { EXPECT_TRUE(bpe_files(*make_byte_tokenizer()).empty()); }

// Finds the kind of a code point, one of four, from the neighbours that it joins.
int kind_of(const Gpt2Splitter& splitter, char32_t code_point) {
  int kind = 0;
  for (const char* neighbour : {"!", "x", "1"}) {
    std::string text = neighbour;
    append_utf8(text, code_point);
    if (splitter.piece_end(text, 0) == text.size()) return kind;
    ++kind;
  }
  return kind;
}

TEST(Gpt2Splitter, KnowsTheKindOfEveryCodePoint) {
  if (std::atoi(utf8proc_unicode_version()) > 16) {
    GTEST_SKIP() << "the fixture knows Unicode 16, utf8proc " << utf8proc_unicode_version();
  }
  const Gpt2Splitter splitter;
  std::vector<int> kinds, counts(4);
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    kinds.push_back(kind_of(splitter, c));
    ++counts[static_cast<std::size_t>(kinds.back())];
  }
  const nlohmann::json expected = fixture_lines_with("kinds").at(0);
  EXPECT_EQ((std::vector<int>{counts[1], counts[2], counts[3]}), expected["kinds"].get<std::vector<int>>());
  EXPECT_EQ(fnv(kinds), expected["fnv"].get<std::string>());
}

}  // namespace
}  // namespace shoal
