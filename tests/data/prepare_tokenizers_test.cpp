// Datasets with a tokenizer that is learnt from their text, or that a folder holds.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "data/bpe_tokenizer.h"
#include "data/bpe_trainer.h"
#include "data/prepare_fixture.h"
#include "data/tokenizer_choice.h"
#include "data/word_counter.h"

namespace shoal {
namespace {

using test::read_file;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string words(std::uint32_t seed, int count) {
  const char* const stems[] = {"river", "stone", "light", "water", "garden", "walk", "sing", "bright"};
  const char* const ends[] = {"", "s", "ed", "ing", "er"};
  std::string text;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525 + 1013904223;
    text += std::string(i % 11 == 0 ? "\n" : " ") + stems[seed >> 20 & 7] + ends[(seed >> 24) % 5];
  }
  return text;
}

TEST_F(PrepareTest, LearnsATokenizerFromTheTrainSplit) {
  const auto train = words(1, 4000);
  auto options = text({folder.write("train.txt", train)}, "bpe:300");
  options.val = {folder.write("val.txt", words(2, 300) + " zzzzzz zzzzzz zzzzzz")};
  const auto meta = prepare(options);
  EXPECT_EQ(meta.vocab_size, 300);
  EXPECT_EQ(decoded("train"), train + "<|endoftext|>");

  WordCounter counter(1);
  counter.add(train);
  const auto expected = make_bpe_tokenizer(merges_text(train_bpe(counter.finish(), 300 - 257)), "test");
  const Dataset data(folder / "out");
  EXPECT_EQ(data.tokenizer().to_json(), expected->to_json());
  EXPECT_EQ(data.tokenizer().name(), "bpe");
  EXPECT_EQ(data.tokenizer().end_of_text(), 299);
  // The files are the tokenizer, too.
  EXPECT_EQ(load_bpe_tokenizer(folder / "out")->to_json(), expected->to_json());
}

TEST_F(PrepareTest, OfTextThatIsCutTheFirstPartIsLearntFrom) {
  std::string first, last;
  for (int i = 0; i < 900; ++i) first += "ab ";
  for (int i = 0; i < 100; ++i) last += "yz ";
  prepare(text({folder.write("a.txt", first + last)}, "bpe:300"));
  const Dataset data(folder / "out");
  const auto merges = read_file(folder / "out/merges.txt");
  EXPECT_THAT(merges, AllOf(HasSubstr("a b\n"), ::testing::Not(HasSubstr("y z"))));
  // No pair is left, so the vocabulary is smaller than it may be: ab, " ab".
  EXPECT_EQ(data.vocab_size(), 259);
  EXPECT_EQ(decoded("train") + decoded("val"), first + last);
}

TEST_F(PrepareTest, ThreadsDoNotChangeTheTokenizer) {
  std::vector<fs::path> inputs;
  for (std::uint32_t i = 0; i < 40; ++i) {  // more than are cut
    inputs.push_back(folder.write(fmt::format("in/{}.txt", i), words(i, 20'000)));
  }
  auto options = text(inputs, "bpe:400");
  std::string first;
  for (const int threads : {1, 2, 5}) {
    options.threads = threads;
    prepare(options);
    const auto files = read_file(folder / "out/vocab.json") + read_file(folder / "out/merges.txt") +
                       read_file(folder / "out/train.bin") + read_file(folder / "out/meta.json");
    if (first.empty()) first = files;
    EXPECT_TRUE(files == first) << threads;
  }
  // It is learnt from the documents that were drawn for train, and from no others.
  WordCounter counter(1);
  const std::string train = decoded("train"), end = "<|endoftext|>";
  for (std::size_t at = 0; at < train.size();) {
    const auto next = train.find(end, at);
    counter.add(std::string_view(train).substr(at, next - at));
    at = next + end.size();
  }
  const auto merges = train_bpe(counter.finish(), 400 - 257);
  EXPECT_EQ(read_file(folder / "out/merges.txt"), "#version: 0.2\n" + merges_text(merges));
}

TEST_F(PrepareTest, AFolderOfATokenizerIsOne) {
  const auto input = folder.write("a.txt", words(1, 4000));
  prepare(text({input}, "bpe:300"));
  fs::rename(folder / "out", folder / "first");
  auto options = text({folder.write("b.txt", words(2, 500) + " ☃")}, (folder / "first").string());
  const auto meta = prepare(options);
  EXPECT_EQ(meta.vocab_size, 300);
  EXPECT_EQ(decoded("train") + decoded("val"), words(2, 500) + " ☃");
  for (const char* name : {"vocab.json", "merges.txt"}) {
    EXPECT_EQ(read_file(folder / "out" / name), read_file(folder / "first" / name));
  }
  // Without a token for the end of text, documents follow each other.
  auto vocab = read_file(folder / "first/vocab.json");
  const auto end = vocab.find(", \"<|endoftext|>\"");
  vocab.replace(end, vocab.find('}', end) - end, "");
  folder.write("first/vocab.json", vocab);
  options.inputs = {folder.write("c.txt", "one "), folder.write("d.txt", "two ")};
  options.val = {input};
  EXPECT_EQ(prepare(options).vocab_size, 299);
  EXPECT_EQ(decoded("train"), "one two ");
}

TEST_F(PrepareTest, TokenizersThatCannotBe) {
  const auto input = folder.write("a.txt", "abc def");
  const auto error = [&](const std::string& tokenizer) {
    return user_error([&] { prepare(text({input}, tokenizer)); });
  };
  EXPECT_THAT(error("bpe:300"), HasSubstr("too little text to learn a tokenizer from"));
  for (const char* size :
       {"bpe", "bpe:", "bpe:x", "bpe:257", "bpe:1048577", "bpe:300x", "bpe:-1", "bpe:1e4"}) {
    EXPECT_THAT(error(size), AllOf(HasSubstr(fmt::format("\"{}\"", size)), HasSubstr("258 to 1,048,576")))
        << size;
  }
  EXPECT_THAT(error("byte"), HasSubstr("did you mean bytes?"));
  EXPECT_THAT(error((folder / "absent").string()), AllOf(HasSubstr("absent"), HasSubstr("is unknown")));
  fs::create_directory(folder / "empty");
  EXPECT_THAT(error((folder / "empty").string()),
              AllOf(HasSubstr("empty has neither"), HasSubstr("merges.txt")));
  EXPECT_TRUE(left_behind().empty());
}

TEST(TokenizerChoice, NamesComeBeforeFolders) {
  using Kind = TokenizerChoice::Kind;
  const test::TempFolder folder;
  fs::create_directory(folder / "char");
  const auto old = fs::current_path();
  fs::current_path(folder.path());
  EXPECT_EQ(parse_tokenizer_choice("char").kind, Kind::chars);
  EXPECT_EQ(parse_tokenizer_choice("./char").kind, Kind::folder);
  fs::current_path(old);
  EXPECT_EQ(parse_tokenizer_choice("bpe:1048576").vocab_size, 1 << 20);
}

}  // namespace
}  // namespace shoal
