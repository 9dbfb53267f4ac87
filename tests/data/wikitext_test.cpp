// WikiText from an archive, a folder, and the cache.
#include <gmock/gmock.h>

#include "data/packing.h"
#include "data/prepare_fixture.h"

namespace shoal {
namespace {

using test::user_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr test::Packing kZip = {ARCHIVE_FORMAT_ZIP, ARCHIVE_FILTER_NONE};

class WikiTextTest : public PrepareTest {
 protected:
  // The members of wikitext-2-raw-v1.zip, or of wikitext-2-v1.zip, with texts that tell them apart.
  static test::Members members(const std::string& place, const std::string& ending) {
    test::Members result = {{place + "/", ""}};
    for (const std::string split : {"test", "valid", "train"}) {
      result.emplace_back(place + "/wiki." + split + ending, " \n = " + split + ending + " = \n");
    }
    return result;
  }
  fs::path zip(const std::string& name, const std::string& place, const std::string& ending) const {
    fs::create_directories((folder / name).parent_path());
    return test::pack(folder / name, members(place, ending), kZip);
  }
  void unpack(const std::string& place, const std::string& ending) const {
    for (const auto& [name, text] : members(place, ending)) {
      if (!name.ends_with('/')) folder.write(name, text);
    }
  }
  PrepareOptions from(const fs::path& path, bool unk = false) const {
    auto options = of("wikitext-2");
    options.tokenizer = "bytes";
    options.inputs = {path};
    options.unk = unk;
    return options;
  }
  void expect_splits(const std::string& ending) const {
    for (const auto& [split, name] : {std::pair{"train", "train"}, {"val", "valid"}, {"test", "test"}}) {
      EXPECT_EQ(decoded(split), std::string(" \n = ") + name + ending + " = \n<|endoftext|>");
    }
  }
  static std::string error(const PrepareOptions& options) {
    return user_error([&] { prepare(options); });
  }
};

TEST_F(WikiTextTest, ComesFromAnArchive) {
  const auto meta = prepare(from(zip("any name.zip", "wikitext-2-raw", ".raw")));
  expect_splits(".raw");
  EXPECT_EQ(meta.dataset, "wikitext-2");
  EXPECT_THAT(meta.sources, ElementsAre(HasSubstr("any name.zip")));
  prepare(from(test::pack(folder / "w.tar.gz", members("wikitext-2", ".tokens"),
                          {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_GZIP}),
               true));
  expect_splits(".tokens");
  auto options = from(zip("103.zip", "wikitext-103-raw", ".raw"));
  options.dataset = "wikitext-103";
  prepare(options);
  expect_splits(".raw");
}

TEST_F(WikiTextTest, ComesFromAFolder) {
  unpack("wikitext-2-raw", ".raw");
  unpack("wikitext-2", ".tokens");
  for (const char* place : {".", "wikitext-2-raw", "wikitext-2-raw/"}) {
    prepare(from(folder / place));
    expect_splits(".raw");
  }
  prepare(from(folder / "wikitext-2", true));
  expect_splits(".tokens");
  fs::rename(folder / "wikitext-2-raw", folder / "mine");
  prepare(from(folder / "mine"));
  expect_splits(".raw");
  fs::create_directory(folder / "zips");
  zip("zips/wikitext-2-raw-v1.zip", "wikitext-2-raw", ".raw");
  prepare(from(folder / "zips"));
  expect_splits(".raw");
}

TEST_F(WikiTextTest, AFolderNamedAfterTheDatasetMayHoldEitherText) {
  unpack("wikitext-2", ".raw");
  prepare(from(folder / "wikitext-2"));
}

TEST_F(WikiTextTest, TheWrongEditionIsNamed) {
  unpack("wikitext-2", ".tokens");
  const auto raw = zip("raw.zip", "wikitext-2-raw", ".raw"), unk = zip("unk.zip", "wikitext-2", ".tokens");
  for (const auto& path : {unk, folder / "wikitext-2", folder.path()}) {
    try {
      prepare(from(path));
      ADD_FAILURE() << path;
    } catch (const PrepareError& error) {
      EXPECT_EQ(error.fault, PrepareError::Fault::only_unk);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(path.string()), HasSubstr("holds the text with <unk>")));
    }
  }
  try {
    prepare(from(raw, true));
    ADD_FAILURE();
  } catch (const PrepareError& error) {
    EXPECT_EQ(error.fault, PrepareError::Fault::only_raw);
  }
  auto options = from(raw);
  options.dataset = "wikitext-103";
  EXPECT_THAT(error(options), HasSubstr("raw.zip holds wikitext-2-raw, not wikitext-103-raw"));
  unpack("wikitext-2-raw", ".raw");
  options.inputs = {folder / "wikitext-2-raw"};
  EXPECT_THAT(error(options), HasSubstr("holds wikitext-2-raw, not wikitext-103-raw"));
  EXPECT_TRUE(left_behind().empty());
}

TEST_F(WikiTextTest, MissingPartsAreNamed) {
  unpack("part", ".raw");
  fs::remove(folder / "part/wiki.valid.raw");
  EXPECT_THAT(error(from(folder / "part")), AllOf(HasSubstr("part has no wiki.valid.raw")));
  auto few = members("wikitext-2-raw", ".raw");
  few.pop_back();
  EXPECT_THAT(error(from(test::pack(folder / "few.zip", few, kZip))),
              HasSubstr("few.zip has no wiki.train.raw"));
  fs::create_directory(folder / "empty");
  EXPECT_THAT(error(from(folder / "empty")),
              AllOf(HasSubstr("no wiki.train.raw and no wikitext-2-raw-v1.zip")));
  EXPECT_THAT(error(from(folder / "absent")), HasSubstr("absent: no such file"));
  EXPECT_THAT(error(from(folder.write("a.parquet", "PAR1...."))),
              HasSubstr("neither a folder nor an archive"));
  EXPECT_THAT(error(from(folder.write("bad.zip", "no zip"))), HasSubstr("bad.zip"));
  auto options = from(folder / "part");
  options.inputs.push_back(folder / "empty");
  EXPECT_THAT(error(options), AllOf(HasSubstr("empty"), HasSubstr("one file or folder")));
  options = text({folder / "part"}, "bytes");
  options.unk = true;
  EXPECT_THAT(error(options), HasSubstr("text has no text with <unk>"));
  EXPECT_TRUE(left_behind().empty());
}

// Another file than the published one is refused.
TEST_F(WikiTextTest, FetchingVerifies) {
  zip("hand/wikitext-2-raw-v1.zip", "wikitext-2-raw", ".raw");
  auto options = of("wikitext-2");
  options.tokenizer = "bytes";
  options.fetch = {(folder / "hand").string(), folder / "cache"};
  EXPECT_THAT(error(options), AllOf(HasSubstr("hand/wikitext-2-raw-v1.zip"), HasSubstr("checksum"),
                                    HasSubstr("https://wikitext.smerity.com/wikitext-2-raw-v1.zip")));
  options.fetch.from = "file://" + (folder / "hand").string();
  options.unk = true;
  EXPECT_THAT(error(options), AllOf(HasSubstr("hand/wikitext-2-v1.zip: cannot be downloaded"),
                                    HasSubstr((folder / "cache/wikitext-2-v1.zip").string()),
                                    ::testing::Not(HasSubstr("tinyshakespeare"))));
}

}  // namespace
}  // namespace shoal
