#include "data/prepare.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "data/plays.h"
#include "data/temp_folder.h"
#include "data/tokenizer.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::read_file;
using ::testing::StartsWith;
using testing::TempFolder;
using testing::user_error;

std::vector<std::int32_t> ids_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.size()));
  file.copy(0, ids);
  return ids;
}

class PrepareTest : public ::testing::Test {
 protected:
  PrepareOptions text(const std::vector<fs::path>& inputs, const std::string& tokenizer) const {
    PrepareOptions options;
    options.dataset = "text";
    options.out = folder / "out";
    options.inputs = inputs;
    options.tokenizer = tokenizer;
    options.threads = 2;
    options.force = true;  // many of these tests prepare several times
    options.fetch.from = testing::shared_data().string();
    return options;
  }
  PrepareOptions of(const std::string& dataset) const {
    auto options = text({}, "gpt2");
    options.dataset = dataset;
    return options;
  }
  std::string decoded(const std::string& split) const {
    const Dataset data(folder / "out");
    return data.tokenizer().decode(ids_of(data.split(split)));
  }
  std::vector<std::string> left_behind() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      const auto name = entry.path().filename().string();
      if (name.starts_with("out")) names.push_back(name);
    }
    return names;
  }
  TempFolder folder;
};

TEST_F(PrepareTest, ShakespeareCharHasTheKnownCounts) {
  SHOAL_NEEDS_SHARED("tinyshakespeare.txt");
  const auto meta = prepare(of("shakespeare-char"));
  EXPECT_EQ(meta.splits.at("train").tokens, 1'003'854);
  EXPECT_EQ(meta.splits.at("val").tokens, 111'540);
  EXPECT_EQ(meta.vocab_size, 65);
  EXPECT_EQ(decoded("train") + decoded("val"), read_file(testing::shared_data() / "tinyshakespeare.txt"));
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
  EXPECT_EQ(decoded("train") + decoded("val"), read_file(testing::shared_data() / "tinyshakespeare.txt"));
}

TEST_F(PrepareTest, ASingleTextIsCutAtACharacter) {
  std::string content;
  for (int i = 0; i < 10; ++i) content += "ä€";  // 20 characters
  prepare(text({folder.write("a.txt", content)}, "char"));
  EXPECT_EQ(decoded("train"), content.substr(0, 9 * 5));  // 18 of them
  EXPECT_EQ(decoded("val"), content.substr(9 * 5));
  prepare(text({folder / "a.txt"}, "bytes"));
  EXPECT_EQ(decoded("train"), content.substr(0, 9 * 5));
  EXPECT_EQ(Dataset(folder / "out").val().size(), 5);
}

TEST_F(PrepareTest, AHugeSingleTextIsTheSameOnAnyNumberOfThreads) {
  std::string content;
  for (int i = 0; content.size() < 3'000'000; ++i) content += "line " + std::to_string(i) + "\n";
  auto options = text({folder.write("a.txt", content)}, "bytes");
  options.threads = 1;
  const auto one = prepare(options);
  options.threads = 5;
  const auto five = prepare(options);
  EXPECT_EQ(one.splits.at("train").xxh64, five.splits.at("train").xxh64);
  EXPECT_EQ(decoded("train") + decoded("val"), content);
  EXPECT_EQ(decoded("val").size(), content.size() - content.size() * 9 / 10);
}

TEST_F(PrepareTest, DocumentsGoWholeToOneSplitAndEndWithEndOfText) {
  std::string records;
  for (int i = 0; i < 2000; ++i) records += "{\"text\": \"d" + std::to_string(i) + "\"}\n";
  auto options = text({folder.write("a.jsonl", records)}, "bytes");
  prepare(options);
  const std::string end = "<|endoftext|>";
  const auto count = [&](std::string split) {
    int documents = 0, last = -1;
    while (!split.empty()) {
      const auto at = split.find(end);
      const int number = std::stoi(split.substr(1, at - 1));
      EXPECT_GT(number, last);  // in order
      last = number;
      ++documents;
      split.erase(0, at + end.size());
    }
    return documents;
  };
  const auto train = decoded("train"), val = decoded("val");
  const int val_documents = count(val);
  EXPECT_EQ(count(train) + val_documents, 2000);
  // Binomial with p = 0.1: four standard deviations are 4 sqrt(2000 * 0.09) = 54.
  EXPECT_NEAR(val_documents, 200, 54);

  options.seed = 2;
  prepare(options);
  EXPECT_NE(decoded("val"), val);
  options.seed = 1337;
  options.threads = 1;
  prepare(options);
  EXPECT_EQ(decoded("val"), val);
}

// With few documents, the end of each is in val.bin, whatever their lengths.
TEST_F(PrepareTest, AFewDocumentsAreCut) {
  for (int documents = 2; documents <= 20; ++documents) {
    std::string records, train, val;
    for (int i = 0; i < documents; ++i) {
      const std::string words(static_cast<std::size_t>(10 + 37 * i), static_cast<char>('a' + i));
      const auto at = static_cast<std::size_t>(0.9 * static_cast<double>(words.size()));
      records += "{\"text\": \"" + words + "\"}\n";
      const std::string between = i > 0 ? "<|endoftext|>" : "";
      train += between + words.substr(0, at);
      val += between + words.substr(at);
    }
    auto options = text({folder.write("a.jsonl", records)}, "bytes");
    options.seed = static_cast<std::uint64_t>(documents);
    EXPECT_EQ(prepare(options).split_rule, "the last 10 % of each document's characters are val");
    EXPECT_EQ(decoded("train"), train) << documents;
    EXPECT_EQ(decoded("val"), val) << documents;
  }
}

TEST_F(PrepareTest, FewDocumentsLeaveNoSplitEmpty) {
  for (int documents = 21; documents < 40; ++documents) {
    std::string records;
    for (int i = 0; i < documents; ++i) records += "{\"text\": \"a\"}\n";
    auto options = text({folder.write("a.jsonl", records)}, "bytes");
    options.seed = static_cast<std::uint64_t>(documents);
    const auto meta = prepare(options);
    EXPECT_EQ(meta.splits.at("val").tokens, 2 * std::max(1l, std::lround(0.1 * documents))) << documents;
    EXPECT_EQ(meta.splits.at("val").tokens + meta.splits.at("train").tokens, 2 * documents);
  }
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

TEST_F(PrepareTest, ADatasetIsReplacedOnlyByForce) {
  auto options = text({folder.write("a.txt", "the first text"), folder.write("b.txt", "another")}, "bytes");
  options.force = false;
  prepare(options);
  const auto before = read_file(folder / "out/train.bin");
  const Dataset mapped(folder / "out");  // as in a run
  for (const std::string tokenizer : {"bytes", "char"}) {
    options.tokenizer = tokenizer;
    EXPECT_THAT(user_error([&] { prepare(options); }),
                AllOf(HasSubstr("out holds a dataset of 20"),
                      HasSubstr("text from " + (folder / "a.txt").string() + " and 1 more, "),
                      HasSubstr("train and 4 val tokens")));
    EXPECT_EQ(read_file(folder / "out/train.bin"), before);
  }
  auto corpus = of("openwebtext");
  corpus.force = false;
  corpus.inputs = options.inputs;
  EXPECT_THAT(user_error([&] { prepare(corpus); }), HasSubstr("out holds a dataset"));
  const auto seen = ids_of(mapped.train());
  options.force = true;
  prepare(options);
  EXPECT_NE(read_file(folder / "out/train.bin"), before);
  EXPECT_EQ(ids_of(mapped.train()), seen);

  folder.write("out/meta.json", "{");
  options.force = false;
  EXPECT_THAT(user_error([&] { prepare(options); }), HasSubstr("a damaged dataset of 20"));
}

// A folder with only train.bin belongs to another program.
TEST_F(PrepareTest, ForceReplacesNoOtherProgramsData) {
  folder.write("out/train.bin", "nanoGPT");
  EXPECT_THAT(user_error([&] { prepare(text({folder.write("a.txt", "some text")}, "bytes")); }),
              HasSubstr("something other than a dataset of Shoal's"));
  EXPECT_EQ(read_file(folder / "out/train.bin"), "nanoGPT");
}

TEST_F(PrepareTest, AnUnknownDatasetThatIsAFileIsText) {
  const auto book = folder.write("my book.txt", "text").string();
  EXPECT_THAT(dataset_problem(book), AllOf(HasSubstr("is no dataset but a file"),
                                           HasSubstr("shoal prepare text " + book + " --out data/my book")));
  EXPECT_THAT(dataset_problem(folder.path().string() + "/"), HasSubstr("but a folder"));
  EXPECT_EQ(dataset_problem("text"), "");
}

TEST_F(PrepareTest, SplitsThatAreFilesAreTakenWhole) {
  auto options = text({folder.write("a.txt", "a\xc3\xa9"), folder.write("b.txt", "b")}, "bytes");
  folder.write("val/2.txt", "w");
  folder.write("val/1.txt", "v");
  folder.write("val/3.txt", "");
  options.val = {folder / "val"};
  options.test = {folder.write("t.jsonl", "{\"text\": \"t\"}\n{\"text\": \"\"}\n{\"text\": \"uu\"}\n"),
                  folder.write("t.txt", "x")};
  const auto meta = prepare(options);
  const Dataset data(folder / "out");
  EXPECT_THAT(ids_of(data.train()), ElementsAre('a', 0xc3, 0xa9, 256, 'b', 256));
  EXPECT_THAT(ids_of(data.val()), ElementsAre('v', 256, 'w', 256));
  EXPECT_THAT(ids_of(data.split("test")), ElementsAre('t', 256, 'u', 'u', 256, 'x', 256));
  EXPECT_NO_THROW(data.verify_checksums());
  EXPECT_EQ(data.meta()->splits.at("test").tokens, 7);
  EXPECT_EQ(data.meta()->split_rule, "the files given as --val are val, those given as --test are test");
  EXPECT_THAT(data.meta()->sources,
              ElementsAre(EndsWith("a.txt"), EndsWith("b.txt"), AllOf(StartsWith("val: "), EndsWith("val")),
                          AllOf(StartsWith("test: "), EndsWith("t.jsonl")),
                          AllOf(StartsWith("test: "), EndsWith("t.txt"))));
  // One file per split, as in WikiText.
  options.inputs = {folder / "a.txt"};
  options.val = {folder / "b.txt"};
  options.test = {folder / "t.txt"};
  prepare(options);
  EXPECT_EQ(decoded("train"), "a\xc3\xa9<|endoftext|>");
  EXPECT_EQ(decoded("val"), "b<|endoftext|>");
  EXPECT_EQ(decoded("test"), "x<|endoftext|>");
}

TEST_F(PrepareTest, TestFilesAloneLeaveTheOtherSplitsAsTheyAre) {
  std::string records;
  for (int i = 0; i < 50; ++i) records += "{\"text\": \"d" + std::to_string(i) + "\"}\n";
  for (const auto& input : {folder.write("one.txt", "0123456789"), folder.write("many.jsonl", records)}) {
    auto options = text({input}, "bytes");
    const auto without = prepare(options);
    options.test = {folder.write("test.txt", "test")};
    const auto with = prepare(options);
    EXPECT_FALSE(without.splits.contains("test"));
    for (const auto* split : {"train", "val"})
      EXPECT_EQ(with.splits.at(split).xxh64, without.splits.at(split).xxh64) << split;
    EXPECT_EQ(decoded("test"), "test<|endoftext|>");
    EXPECT_EQ(with.split_rule, without.split_rule + ", those given as --test are test");
  }
}

TEST_F(PrepareTest, TheCharVocabularyIsOfAllSplits) {
  auto options = text({folder.write("a.txt", "db")}, "char");
  options.val = {folder.write("b.txt", "ab")};
  options.test = {folder.write("c.txt", "cb")};
  EXPECT_EQ(prepare(options).vocab_size, 4);
  const Dataset data(folder / "out");
  EXPECT_THAT(ids_of(data.train()), ElementsAre(3, 1));
  EXPECT_THAT(ids_of(data.val()), ElementsAre(0, 1));
  EXPECT_THAT(ids_of(data.split("test")), ElementsAre(2, 1));
}

TEST_F(PrepareTest, HugeSplitsAreTheSameOnAnyNumberOfThreads) {
  std::string content[3];
  auto options = text({}, "bytes");
  std::vector<fs::path>* const paths[] = {&options.inputs, &options.val, &options.test};
  for (int split = 0; split < 3; ++split) {
    auto& lines = content[split];
    for (int i = 0; lines.size() < 1'500'000; ++i) lines += "line " + std::to_string(3 * i + split) + "\n";
    *paths[split] = {folder.write(std::to_string(split) + ".txt", lines)};
  }
  for (const int threads : {1, 5}) {
    options.threads = threads;
    prepare(options);
    EXPECT_TRUE(decoded("train") == content[0] + "<|endoftext|>") << threads;
    EXPECT_TRUE(decoded("val") == content[1] + "<|endoftext|>") << threads;
    EXPECT_TRUE(decoded("test") == content[2] + "<|endoftext|>") << threads;
  }
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

TEST_F(PrepareTest, AFailureLeavesNothingAndKeepsTheOldDataset) {
  const auto good = folder.write("good.txt", "a good text");
  EXPECT_THROW(prepare(text({folder.write("bad.jsonl", "{")}, "bytes")), UserError);
  EXPECT_THAT(left_behind(), ElementsAre());
  prepare(text({good}, "bytes"));
  EXPECT_THROW(prepare(text({folder / "bad.jsonl"}, "bytes")), UserError);
  EXPECT_THAT(left_behind(), ElementsAre("out"));
  EXPECT_EQ(decoded("train") + decoded("val"), "a good text");
  // Files left by a killed process are removed.
  folder.write("out.partial/train.bin", "rubbish");
  prepare(text({folder.write("new.txt", "a newer text")}, "bytes"));
  EXPECT_THAT(left_behind(), ElementsAre("out"));
  EXPECT_EQ(decoded("train") + decoded("val"), "a newer text");
}

TEST_F(PrepareTest, RefusesToReplaceWhatIsNoDataset) {
  folder.write("out/thesis.txt", "precious");
  const auto good = folder.write("good.txt", "a good text");
  EXPECT_THAT(user_error([&] { prepare(text({good}, "bytes")); }),
              AllOf(HasSubstr("out"), HasSubstr("other than a dataset")));
  auto options = text({good}, "bytes");
  options.out = good;
  EXPECT_THAT(user_error([&] { prepare(options); }), HasSubstr("no folder"));
  options.out = "";
  EXPECT_THAT(user_error([&] { prepare(options); }), HasSubstr("has no name"));
  options.out = good / "below";
  EXPECT_THAT(user_error([&] { prepare(options); }), HasSubstr("cannot be created"));
  EXPECT_EQ(read_file(folder / "out/thesis.txt"), "precious");
}

TEST_F(PrepareTest, BadInputIsNamed) {
  const auto error = [&](const PrepareOptions& options) { return user_error([&] { prepare(options); }); };
  EXPECT_THAT(error(of("shakespear")), AllOf(HasSubstr("did you mean shakespeare"), HasSubstr("synthetic")));
  EXPECT_THAT(error(text({}, "bytes")), HasSubstr("name the files"));
  EXPECT_THAT(error(text({folder.write("empty.txt", "")}, "bytes")),
              AllOf(HasSubstr("no text"), HasSubstr("empty.txt")));
  EXPECT_THAT(error(text({folder.write("one.txt", "1")}, "bytes")), HasSubstr("split is empty"));
  EXPECT_THAT(error(text({folder / "one.txt"}, "word")),
              AllOf(HasSubstr("word"), HasSubstr("gpt2, char or bytes")));
  const auto bad = folder.write("bad.txt", "caf\xe9 au lait");
  EXPECT_THAT(error(text({bad}, "char")), AllOf(HasSubstr("bad.txt"), HasSubstr("UTF-8")));
  std::string far(3 << 20, 'a');  // 3 MiB without a position to cut, and then a bad byte
  folder.write("bad.txt", far + "\n" + far + "caf\xe9 au lait");
  EXPECT_THAT(error(text({bad}, "char")), AllOf(HasSubstr("counting from byte"), HasSubstr("UTF-8")));
  auto options = text({folder / "one.txt"}, "bytes");
  options.val_fraction = 1;
  EXPECT_THAT(error(options), HasSubstr("a validation share of 1 is not"));
  options = of("synthetic");
  options.size = 0;
  EXPECT_THAT(error(options), HasSubstr("a size of 0 characters"));
  EXPECT_THAT(left_behind(), ElementsAre());
}

TEST_F(PrepareTest, BadSplitsAreNamed) {
  const auto error = [&](const PrepareOptions& options) { return user_error([&] { prepare(options); }); };
  for (const auto* dataset : {"synthetic", "shakespeare", "openwebtext"}) {
    auto options = of(dataset);
    options.test = {folder.write("a.txt", "a")};
    EXPECT_THAT(error(options), AllOf(HasSubstr(dataset), HasSubstr("takes no files for val and test")));
  }
  auto options = text({folder.write("in/a.txt", "a")}, "bytes");
  options.val = {folder.write("empty.txt", "")};
  EXPECT_THAT(error(options), AllOf(HasSubstr("no text"), HasSubstr("empty.txt")));
  options.val = {folder / "absent.txt"};
  EXPECT_THAT(error(options), AllOf(HasSubstr("no such file"), HasSubstr("absent.txt")));
  options.tokenizer = "char";
  options.val = {folder.write("bad.txt", "caf\xe9 au lait")};
  EXPECT_THAT(error(options), AllOf(HasSubstr("bad.txt"), HasSubstr("UTF-8")));

  const auto share_text = AllOf(HasSubstr("a.txt"), HasSubstr("share text"));
  fs::create_directory_symlink(folder / "in", folder / "link");
  for (const auto& input : {folder / "in", folder / "in/", folder / "in/a.txt", folder / "link"}) {
    options.inputs = {folder.write("other.txt", "other"), input};
    options.val = {folder / "in/a.txt"};
    EXPECT_THAT(error(options), share_text) << input;
    std::swap(options.val, options.inputs);
    EXPECT_THAT(error(options), share_text) << input;
  }
  options = text({folder / "other.txt"}, "bytes");
  options.test = options.val = {folder / "in/a.txt"};
  EXPECT_THAT(error(options), share_text);
  EXPECT_THAT(left_behind(), ElementsAre());
  options.val = {folder.write("in/a.txt.more", "b")};  // a longer name is not inside the folder
  EXPECT_NO_THROW(prepare(options));
}

}  // namespace
}  // namespace shoal
