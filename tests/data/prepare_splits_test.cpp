// Tests of the splits that prepare() makes.
#include "data/prepare.h"

#include <gmock/gmock.h>

#include "data/prepare_fixture.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::ids_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::StartsWith;

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

// Exactly a share of fewer than few_documents() is for validation; from there on each document is drawn by
// itself.
TEST(SplitRules, AShareOfFewDocumentsIsExact) {
  const double share = 0.25;
  const auto few = few_documents(share);
  EXPECT_EQ(few, 40);
  const auto for_validation = [&](std::uint64_t seed, std::int64_t documents, std::int64_t among) {
    const SplitRule rule(seed, share, documents);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < among; ++i) count += rule(i) == Split::val ? 1 : 0;
    return count;
  };
  bool drawn = false;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(for_validation(seed, few - 1, few - 1), 10);
    EXPECT_EQ(for_validation(seed, 2, 2), 1);
    EXPECT_EQ(for_validation(seed, few, 1000), for_validation(seed, few + 12345, 1000));
    drawn = drawn || for_validation(seed, few, few) != 10;
  }
  EXPECT_TRUE(drawn);
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
  EXPECT_EQ(data.meta()->split_rule, "the files given for val are val, those given for test are test");
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
    EXPECT_EQ(with.split_rule, without.split_rule + ", those given for test are test");
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

}  // namespace
}  // namespace shoal
