#include "data/token_folder.h"

#include <gmock/gmock.h>

#include "data/dataset.h"
#include "data/errors.h"
#include "data/llmc_files.h"
#include "data/temp_folder.h"
#include "data/token_ids.h"
#include "data/tokenizer.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::ids_of;
using test::llmc_file;
using test::llmc_header;
using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Narrow = std::vector<std::uint16_t>;
using Wide = std::vector<std::uint32_t>;

class TokenFolderTest : public ::testing::Test {
 protected:
  std::string error() const {
    return user_error([&] { Dataset{folder.path()}; });
  }
  TempFolder folder;
};

TEST_F(TokenFolderTest, ReadsLlmcShardsAsOneStreamInTheOrderOfTheirNames) {
  folder.write("fineweb_train_000002.bin", llmc_file(Narrow{50256, 4, 5}));
  folder.write("fineweb_train_000001.bin", llmc_file(Narrow{1, 2}));
  folder.write("fineweb_train_000010.bin", llmc_file(Narrow{6}));
  folder.write("fineweb_val_000000.bin", llmc_file(Narrow{7, 8}));
  folder.write("README.txt", "notes");
  const Dataset data(folder.path());
  EXPECT_THAT(ids_of(data.train()), ElementsAre(1, 2, 50256, 4, 5, 6));
  EXPECT_THAT(ids_of(data.val()), ElementsAre(7, 8));
  EXPECT_EQ(data.train().path().filename(), "fineweb_train_000001.bin");
  EXPECT_EQ(data.vocab_size(), 50257);
  EXPECT_FALSE(data.has_tokenizer());
  EXPECT_EQ(data.description(), "4 files of llm.c in GPT-2's tokens");
  EXPECT_NO_THROW(data.verify());
  for (std::int64_t begin = 0; begin < 6; ++begin) {  // across every border
    std::vector<std::int32_t> part(static_cast<std::size_t>(6 - begin));
    data.train().copy(begin, part);
    const auto all = ids_of(data.train());
    EXPECT_EQ(part, std::vector(all.begin() + begin, all.end()));
  }
}

TEST_F(TokenFolderTest, ReadsEveryNameThatLlmcGives) {
  for (const auto* name :
       {"tiny_shakespeare_%.bin", "TinyStories_%.bin", "edu_fineweb_%_000000.bin", "%.bin"}) {
    const TempFolder one;
    for (const std::string split : {"train", "val"}) {
      auto file = std::string(name);
      one.write(file.replace(file.find('%'), 1, split), llmc_file(Narrow{3, 1, 4}));
    }
    EXPECT_THAT(ids_of(Dataset(one.path()).train()), ElementsAre(3, 1, 4)) << name;
  }
}

TEST_F(TokenFolderTest, ReadsLlamaTokens) {
  folder.write("tiny_train.bin", llmc_file(Wide{128'000, 1, 2}));
  folder.write("tiny_val.bin", llmc_file(Wide{128'255, 1}));
  folder.write("tiny_test.bin", llmc_file(Wide{5}));
  const Dataset data(folder.path());
  EXPECT_EQ(data.vocab_size(), 128'256);
  EXPECT_EQ(data.train().bytes_per_token(), 4);
  EXPECT_THAT(ids_of(data.val()), ElementsAre(128'255, 1));
  EXPECT_THAT(ids_of(data.split("test")), ElementsAre(5));
  folder.write("tiny_val.bin", llmc_file(Narrow{1}));
  EXPECT_THAT(error(), AllOf(HasSubstr("Llama 3"), HasSubstr("GPT-2"), HasSubstr("one tokenizer")));
  fs::rename(folder / "tiny_val.bin", folder / "tiny_train_1.bin");
  folder.write("tiny_val.bin", llmc_file(Wide{1}));
  EXPECT_THAT(error(), HasSubstr("one split"));
}

TEST_F(TokenFolderTest, VerifyNamesTheShard) {
  folder.write("a_train_1.bin", llmc_file(Narrow{1, 2}));
  folder.write("a_train_2.bin", llmc_file(Narrow{3, 50257}));
  folder.write("a_val.bin", llmc_file(Narrow{3}));
  EXPECT_THAT(user_error([&] { Dataset(folder.path()).verify(); }),
              AllOf(HasSubstr("a_train_2.bin: token 50257 at position 1 "), HasSubstr("50,257")));
  EXPECT_NO_THROW(Dataset(folder.path(), {.truncate = 0.75}).verify());  // the damaged part is not used
}

TEST_F(TokenFolderTest, SaysWhatIsWrongWithAHeader) {
  folder.write("a_val.bin", llmc_file(Narrow{3}));
  const auto error_with = [&](const std::string& bytes) {
    folder.write("a_train.bin", bytes);
    const auto text = error();
    EXPECT_THAT(text, HasSubstr("a_train.bin: "));
    return text;
  };
  const auto good = llmc_file(Narrow{1, 2, 3});
  EXPECT_THAT(error_with(""), HasSubstr("the file is empty"));
  EXPECT_THAT(error_with(good.substr(0, 700)), HasSubstr("700 bytes are less than the header"));
  EXPECT_THAT(error_with(llmc_header(20240521, 1, 1) + "ab"),
              AllOf(HasSubstr("20240521"), HasSubstr("20240520")));
  EXPECT_THAT(error_with(llmc_header(20240522, 1, 1) + "ab"), HasSubstr("evaluation set"));
  EXPECT_THAT(error_with(llmc_header(20240520, 2, 1) + "ab"), HasSubstr("version 2"));
  EXPECT_THAT(error_with(llmc_header(20240801, 1, 1) + "abcd"), HasSubstr("Shoal reads version 7"));
  EXPECT_THAT(error_with(good.substr(0, good.size() - 1)),
              AllOf(HasSubstr("promises 3 tokens"), HasSubstr("5 bytes")));
  EXPECT_THAT(error_with(good + "x"), HasSubstr("7 bytes"));
  EXPECT_THAT(error_with(llmc_header(20240520, 1, 0)), HasSubstr("promises 0 tokens"));
  EXPECT_THAT(error_with(llmc_header(20240520, 1, -1) + "ab"), HasSubstr("promises -1 tokens"));
  EXPECT_THAT(error_with(llmc_header(20240520, 1, INT32_MAX) + "ab"), HasSubstr("incomplete or damaged"));
}

// Every prefix and every changed byte of the header's fields is read or refused.
TEST_F(TokenFolderTest, SurvivesDamage) {
  folder.write("a_val.bin", llmc_file(Narrow{3}));
  const auto good = llmc_file(Narrow{1, 2, 3});
  for (std::size_t size = 1; size < good.size(); size += size < 1020 ? 51 : 1) {
    folder.write("a_train.bin", good.substr(0, size));
    EXPECT_THAT(error(), HasSubstr("a_train.bin"));
  }
  for (std::size_t i = 0; i < 12; ++i) {
    for (const int change : {1, 0x40, 0x80, 0xff}) {
      auto bad = good;
      bad[i] = static_cast<char>(bad[i] ^ change);
      folder.write("a_train.bin", bad);
      EXPECT_THAT(error(), HasSubstr("a_train.bin"));
    }
  }
}

TEST_F(TokenFolderTest, NamesTheFilesThatAreMissing) {
  folder.write("a_train_1.bin", llmc_file(Narrow{1}));
  EXPECT_THAT(error(), AllOf(HasSubstr("a_train_1.bin"), HasSubstr("no a_val*.bin")));
  folder.write("b_val.bin", llmc_file(Narrow{1}));
  EXPECT_THAT(error(), HasSubstr("no a_val*.bin"));
  folder.write("a_val.bin", llmc_file(Narrow{1}));
  EXPECT_EQ(Dataset(folder.path()).val().size(), 1);  // an evaluation set in the folder is ignored
  folder.write("b_train.bin", llmc_file(Narrow{1}));
  EXPECT_THAT(error(), HasSubstr("several datasets (a, b)"));
}

TEST_F(TokenFolderTest, ReadsNanoGptCharacters) {
  folder.write_ids<std::uint16_t>("train.bin", {4, 5, 6});
  folder.write_ids<std::uint16_t>("val.bin", {9, 8});
  fs::copy(SHOAL_SOURCE_DIR "/tests/data/fixtures/nanogpt/meta-4.pkl", folder / "meta.pkl");
  const Dataset data(folder.path());
  EXPECT_EQ(data.vocab_size(), 10);
  EXPECT_EQ(data.tokenizer().decode(ids_of(data.train())), "abo");
  EXPECT_EQ(data.tokenizer().decode(ids_of(data.val())), "😀€");
  EXPECT_THAT(data.description(), HasSubstr("10 characters of meta.pkl"));
  EXPECT_NO_THROW(data.verify());
  folder.write_ids<std::uint16_t>("val.bin", {10});
  EXPECT_THAT(user_error([&] { Dataset(folder.path()).verify(); }), HasSubstr("past the vocabulary of 10"));
  folder.write("meta.pkl", "cos\nsystem\n.");
  EXPECT_THAT(error(), AllOf(HasSubstr("meta.pkl"), HasSubstr("os.system")));
}

TEST_F(TokenFolderTest, AssumesGpt2OfNanoGptFilesAlone) {
  folder.write_ids<std::uint16_t>("train.bin", {4, 5, 6});
  folder.write_ids<std::uint16_t>("val.bin", {50256});
  const Dataset data(folder.path());
  EXPECT_EQ(data.vocab_size(), 50257);
  EXPECT_THAT(data.description(), HasSubstr("GPT-2's vocabulary of 50,257 is assumed"));
  EXPECT_EQ(Dataset(folder.path(), {.vocab_size = 60'000}).vocab_size(), 60'000);
  folder.write_ids<std::uint16_t>("val.bin", {50257});
  EXPECT_THAT(user_error([&] { Dataset(folder.path()).verify(); }),
              HasSubstr("token 50257 at position 0 is past the vocabulary of 50,257"));
}

TEST_F(TokenFolderTest, SaysWhatAFolderWithoutADatasetHolds) {
  const auto fault = [](const std::filesystem::path& path) -> DataError::Fault {
    try {
      Dataset{path};
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(error.path.string()));
      return error.fault;
    }
    throw std::runtime_error("opened");
  };
  EXPECT_EQ(fault(folder.path()), DataError::Fault::empty);
  folder.write("books/one.txt", "text");
  EXPECT_EQ(fault(folder / "books"), DataError::Fault::no_dataset);
  EXPECT_THAT(user_error([&] { Dataset{folder / "books"}; }), HasSubstr("one.txt"));
  EXPECT_EQ(fault(folder / "books/one.txt"), DataError::Fault::file);
  EXPECT_EQ(fault(folder / "none"), DataError::Fault::missing);
}

}  // namespace
}  // namespace shoal
