// Tests of errors in prepare(), and of the replacement of datasets.
#include "data/prepare.h"

#include <gmock/gmock.h>

#include "data/prepare_fixture.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::ids_of;
using test::read_file;
using test::user_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

// The progress is that of an interrupted preparation of OpenWebText.
TEST_F(PrepareTest, KeepsProgressAndFilesOfOthersInItsStagingFolder) {
  const auto good = folder.write("good.txt", "a good text");
  for (const auto& [name, remedy] :
       {std::pair{"progress.json", "resume it"}, std::pair{"sub/mine.txt", "move or remove the folder"}}) {
    const auto kept = folder.write(std::string("out.partial/") + name, "precious");
    for (const auto& options : {text({good}, "bytes"), of("synthetic")}) {
      EXPECT_THAT(user_error([&] { prepare(options); }), AllOf(HasSubstr("out.partial"), HasSubstr(remedy)));
    }
    EXPECT_EQ(read_file(kept), "precious");
    fs::remove_all(folder / "out.partial");
  }
  // Bad input removes nothing either.
  const auto other = folder.write("out.partial/train.bin", "of a killed process");
  EXPECT_THROW(prepare(text({folder / "absent.txt"}, "bytes")), UserError);
  EXPECT_EQ(read_file(other), "of a killed process");
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
  fs::create_symlink("loop", folder / "loop");
  options.out = folder / "loop";
  EXPECT_THAT(user_error([&] { prepare(options); }), HasSubstr("loop: Too many levels"));
  options.out = folder / std::string(400, 'n');
  EXPECT_THAT(user_error([&] { prepare(options); }), HasSubstr("nnn: File name too long"));
  EXPECT_EQ(read_file(folder / "out/thesis.txt"), "precious");
}

TEST_F(PrepareTest, LeavesOutItsOwnFilesAmongTheTexts) {
  auto options = text({folder / "nest"}, "bpe:260");
  options.out = folder / "nest/out/";
  folder.write("nest/z.txt", "low lower lowest, low lower lowest");
  prepare(options);
  const auto meta = read_file(folder / "nest/out/meta.json");
  prepare(options);  // with meta.json, vocab.json and merges.txt in the folder
  EXPECT_EQ(read_file(folder / "nest/out/meta.json"), meta);
}

TEST_F(PrepareTest, RefusesTextsThatItWouldRemove) {
  prepare(text({folder.write("a.txt", "a good text")}, "bytes"));
  for (const auto* name : {"out/more.txt", "out.partial/more.txt"}) {
    const auto precious = folder.write(name, "precious");
    for (const auto& input : {precious, precious.parent_path()}) {
      const auto options = text({folder / "a.txt", input}, "bytes");
      EXPECT_THAT(
          user_error([&] { prepare(options); }),
          AllOf(HasSubstr(input.string() + " is in "), HasSubstr("whose files the dataset replaces")));
    }
    EXPECT_EQ(read_file(precious), "precious");
  }
}

TEST_F(PrepareTest, BadInputIsNamed) {
  const auto error = [&](const PrepareOptions& options) { return user_error([&] { prepare(options); }); };
  EXPECT_THAT(error(of("shakespear")), HasSubstr("unknown dataset \"shakespear\""));
  EXPECT_THAT(error(text({}, "bytes")), HasSubstr("name the files"));
  EXPECT_THAT(error(text({folder.write("empty.txt", "")}, "bytes")),
              AllOf(HasSubstr("no text"), HasSubstr("empty.txt")));
  EXPECT_THAT(error(text({folder.write("one.txt", "1")}, "bytes")), HasSubstr("split is empty"));
  EXPECT_THAT(error(text({folder / "one.txt"}, "word")),
              AllOf(HasSubstr("\"word\" is unknown"), HasSubstr("gpt2, char, bytes, bpe:SIZE"),
                    HasSubstr("merges.txt")));
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

// Links have other names than the files.
TEST_F(PrepareTest, LinksToFilesOfAnotherSplitAreRefused) {
  folder.write("in/a.txt", "a");
  fs::create_directories(folder / "links/deep");
  fs::create_symlink("../../in/a.txt", folder / "links/deep/symbolic.txt");
  fs::create_directories(folder / "hard");
  fs::create_hard_link(folder / "in/a.txt", folder / "hard/b.txt");
  auto options = text({folder / "in"}, "bytes");
  for (const auto& [name, link] : {std::pair{"links", "symbolic.txt"}, std::pair{"hard", "b.txt"}}) {
    const auto shared = AllOf(HasSubstr("in/a.txt"), HasSubstr(link), HasSubstr("share text"));
    options.val = {folder / name};
    EXPECT_THAT(user_error([&] { prepare(options); }), shared);
    std::swap(options.val, options.test);
    EXPECT_THAT(user_error([&] { prepare(options); }), shared);
    options.val = options.inputs;
    options.inputs = {folder.write("other.txt", "other")};
    EXPECT_THAT(user_error([&] { prepare(options); }), shared);
    options = text({folder / "in"}, "bytes");
  }
  EXPECT_THAT(left_behind(), ElementsAre());
  options.inputs = {folder / "in", folder / "links", folder / "hard"};  // one split may have a text twice
  options.val = {folder / "other.txt"};
  EXPECT_NO_THROW(prepare(options));
}

}  // namespace
}  // namespace shoal
