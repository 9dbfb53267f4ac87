#include "data/dataset.h"

#include <gmock/gmock.h>

#include "data/temp_folder.h"
#include "data/tokenizer.h"

namespace shoal {
namespace {

using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write_ids<std::uint16_t>("train.bin", {0, 1, 2, 3, 0, 1, 2, 3, 0, 1});
    folder.write_ids<std::uint16_t>("val.bin", {0, 1, 4});
    meta.dataset = "text";
    meta.tokenizer = R"({"name":"bytes"})";
    meta.vocab_size = 257;
    meta.splits["train"] = {10, TokenFile(folder / "train.bin", 2).checksum(), 0.75};
    meta.splits["val"] = {3, TokenFile(folder / "val.bin", 2).checksum(), {}};
    meta.entropy_per_token = 0.5;
    meta.sources = {"a.txt"};
    meta.seed = 0xffffffffffffffffull;
    meta.split_rule = "by hand";
  }
  void write_meta() const { folder.write("meta.json", to_json_text(meta)); }
  std::string open_error(const DatasetOptions& options = {}) const {
    return user_error([&] { Dataset(folder.path(), options); });
  }
  // meta.json with one piece of text replaced
  void write_meta_with(const std::string& old_text, const std::string& new_text) const {
    auto text = to_json_text(meta);
    const auto at = text.find(old_text);
    ASSERT_NE(at, std::string::npos) << old_text;
    folder.write("meta.json", text.replace(at, old_text.size(), new_text));
  }

  TempFolder folder;
  DatasetMeta meta;
};

TEST_F(DatasetTest, OpensWhatMetaDescribes) {
  write_meta();
  const Dataset data(folder.path());
  EXPECT_EQ(data.train().size(), 10);
  EXPECT_EQ(data.val().size(), 3);
  EXPECT_FALSE(data.has_split("test"));
  EXPECT_EQ(data.vocab_size(), 257);
  EXPECT_EQ(data.entropy_per_token(), 0.5);
  EXPECT_EQ(data.split_entropy("train"), 0.75);
  EXPECT_EQ(data.split_entropy("val"), std::nullopt);
  EXPECT_EQ(data.tokenizer().name(), "bytes");
  EXPECT_EQ(data.meta()->seed, meta.seed);
  EXPECT_EQ(data.meta()->sources, meta.sources);
  EXPECT_NO_THROW(data.verify());
  EXPECT_NO_THROW(data.verify_checksums());
}

TEST_F(DatasetTest, TakesANanoGptFolder) {
  EXPECT_EQ(Dataset(folder.path()).vocab_size(), 50257);
  const Dataset data(folder.path(), {.vocab_size = 50304});
  EXPECT_EQ(data.vocab_size(), 50304);
  EXPECT_FALSE(data.has_tokenizer());
  EXPECT_EQ(data.entropy_per_token(), std::nullopt);
  EXPECT_THAT(user_error([&] { data.tokenizer(); }), HasSubstr("neither meta.json nor meta.pkl"));
  EXPECT_THAT(user_error([&] { data.split("test"); }), HasSubstr("no test.bin"));
  EXPECT_THAT(user_error([&] { Dataset(folder.path(), {.vocab_size = 4}).verify(); }),
              HasSubstr("position 2 "));
}

TEST_F(DatasetTest, TruncatesTheTrainSplitOnly) {
  const Dataset data(folder.path(), {.truncate = 0.35});
  EXPECT_EQ(data.train().size(), 3);
  EXPECT_EQ(data.val().size(), 3);
  EXPECT_THAT(open_error({.truncate = 0}), HasSubstr("a share of 0 of"));
  EXPECT_THAT(open_error({.truncate = 1.5}), HasSubstr("a share of 1.5 of"));
}

TEST_F(DatasetTest, SaysWhatATruncatedFileShouldHold) {
  write_meta();
  std::filesystem::resize_file(folder / "train.bin", 12);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("train.bin"), HasSubstr("holds 6"), HasSubstr("promises 10")));
}

TEST_F(DatasetTest, ChecksumFindsAChangedFile) {
  write_meta();
  folder.write_ids<std::uint16_t>("val.bin", {0, 1, 3});
  EXPECT_THAT(user_error([&] { Dataset(folder.path()).verify_checksums(); }),
              AllOf(HasSubstr("val.bin"), HasSubstr("checksum")));
}

TEST_F(DatasetTest, MissingFilesAreNamed) {
  EXPECT_THAT(user_error([&] { Dataset(folder / "nowhere"); }), HasSubstr("nowhere: no such data folder"));
  std::filesystem::remove(folder / "val.bin");
  EXPECT_THAT(open_error(), HasSubstr("val.bin"));
}

TEST_F(DatasetTest, BadMetaIsNamed) {
  folder.write("meta.json", "{\"dataset\": ");
  EXPECT_THAT(open_error(),
              HasSubstr("meta.json: not valid JSON: it ends too early; prepare the data again"));
  folder.write("meta.json", "{\n  \"seed\" 3}");
  EXPECT_THAT(open_error(), HasSubstr("not valid JSON: line 2, column 10: '3' is not expected here"));
  folder.write("meta.json", "{\"seed\": 1e999}");
  EXPECT_THAT(open_error(), HasSubstr("a number is out of range"));
  folder.write("meta.json", "[]");
  EXPECT_THAT(open_error(), HasSubstr("not a JSON object"));
  folder.write("meta.json", "{\"tokenizer\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}");
  EXPECT_THAT(open_error(), HasSubstr("meta.json: has lists or objects nested more than 64 deep"));
  write_meta_with("\"vocab_size\"", "\"vocab\"");
  EXPECT_THAT(open_error(), HasSubstr("lacks the key \"vocab_size\""));
  write_meta_with("257", "\"many\"");
  EXPECT_THAT(open_error(), HasSubstr("\"vocab_size\" has a wrong type"));
  write_meta_with("257", "1e30");
  EXPECT_THAT(open_error(), HasSubstr("\"vocab_size\" is 1e+30, which is no whole number"));
  write_meta_with("257", "-1");
  EXPECT_THAT(open_error(), HasSubstr("\"vocab_size\" is -1"));
  write_meta_with("uint16", "int8");
  EXPECT_THAT(open_error(), HasSubstr("int8"));
  write_meta_with("\"train\"", "\"training\"");
  EXPECT_THAT(open_error(), HasSubstr("no \"train\" split"));
  write_meta_with("\"xxh64\": \"", "\"xxh64\": \"no");
  EXPECT_THAT(open_error(), HasSubstr("hexadecimal"));
  write_meta_with("257", "300");
  EXPECT_THAT(user_error([&] { Dataset(folder.path()).tokenizer(); }), HasSubstr("257 tokens"));
}

}  // namespace
}  // namespace shoal
