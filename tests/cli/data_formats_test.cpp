// Data prepared by other programs: training, resume and sampling.
#include <fmt/format.h>

#include "cli/tiny_runs.h"
#include "data/llmc_files.h"
#include "data/temp_folder.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;

class DataFormats : public TinyRuns {
 protected:
  DataFormats() { fs::remove_all(file("data")); }

  // A run in two parts, on one rank and on two ranks; both give the same result.
  void train_and_resume() const {
    const Settings exact = {"run.deterministic=layout", "train.micro_batch=1", "train.steps=4",
                            "eval.interval=0"};
    const auto run = [&](const std::string& name, const std::string& ranks, const Settings& more) {
      const auto result = train(with(with(exact, {"run.name=" + name, "--ranks", ranks}), more));
      ASSERT_EQ(result.code, 0) << result.err;
    };
    run("whole", "1", {});
    run("parts", "2", {"train.steps=2"});
    run("parts", "2", {"init.from=resume"});
    EXPECT_EQ(shoal({"checkpoint", "compare", "runs/whole", "runs/parts"}).code, 0);
  }
  Result sample(const Settings& environment = {}) const {
    return run({"sample", "--checkpoint", "runs/parts", "--max-tokens", "20"}, folder_.path(), environment);
  }
};

template <typename T>
std::vector<T> pattern(std::size_t size, T ids) {
  std::vector<T> result(size);
  for (std::size_t i = 0; i < size; ++i) result[i] = static_cast<T>(i * i % ids);
  return result;
}

TEST_F(DataFormats, NanoGptCharacters) {
  write_file(file("data/train.bin"), bytes_of(pattern<std::uint16_t>(2000, 10)));
  write_file(file("data/val.bin"), bytes_of(pattern<std::uint16_t>(200, 10)));
  fs::copy(SHOAL_SOURCE_DIR "/tests/data/fixtures/nanogpt/meta-3.pkl", file("data/meta.pkl"));
  train_and_resume();
  const auto text = sample();
  EXPECT_EQ(text.code, 0) << text.err;
  for (const auto* character : {"a", "\n", "é", "€", "😀"}) {  // of the vocabulary
    if (text.out.find(character) != std::string::npos) return;
  }
  FAIL() << text.out;
}

TEST_F(DataFormats, LlmcShards) {
  // A window may cross the border between two files, so the partition into files has no effect.
  const auto ids = pattern<std::uint16_t>(2000, 50'257);
  const auto part = [&](int begin, int end) {
    return llmc_file(std::vector(ids.begin() + begin, ids.begin() + end));
  };
  write_file(file("data/fineweb_train_000001.bin"), part(0, 777));
  write_file(file("data/fineweb_train_000002.bin"), part(777, 2000));
  write_file(file("data/fineweb_val_000000.bin"), part(0, 100));
  train_and_resume();
  EXPECT_THAT(read_file(file("runs/whole/train.log")), HasSubstr("data: 3 files of llm.c in GPT-2's tokens"));
  fs::remove(file("data/fineweb_train_000002.bin"));
  write_file(file("data/fineweb_train_000001.bin"), part(0, 2000));
  train_well({"run.deterministic=layout", "train.micro_batch=1", "train.steps=4", "eval.interval=0",
              "run.name=joined"});
  EXPECT_EQ(shoal({"checkpoint", "compare", "runs/whole", "runs/joined"}).code, 0);

  const auto cache = "XDG_CACHE_HOME=" + file("cache").string();
  expect_user_error_at_the_end(sample({cache, "SHOAL_DATA_DIR=file://" + file("none").string()}),
                               "gpt2/encoder.json", file("cache/shoal/gpt2/vocab.bpe").string());
  const auto shared = fs::absolute(shared_data());
  if (!fs::exists(shared / "gpt2")) return;
  const auto text = sample({cache, "SHOAL_DATA_DIR=" + shared.string()});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.err, HasSubstr("assumed to be GPT-2's"));
}

TEST_F(DataFormats, NanoGptFilesAloneAreTakenAsGpt2s) {
  write_file(file("data/train.bin"), bytes_of(pattern<std::uint16_t>(2000, 50'257)));
  write_file(file("data/val.bin"), bytes_of(pattern<std::uint16_t>(200, 50'257)));
  train_well({"train.steps=1", "eval.interval=0"});
  EXPECT_THAT(read_file(file("runs/tiny/train.log")), HasSubstr("GPT-2's vocabulary of 50,257 is assumed"));
}

TEST_F(DataFormats, DamageIsRefusedOnEveryRank) {
  const auto good = llmc_file(pattern<std::uint16_t>(2000, 50'257));
  write_file(file("data/a_val.bin"), good);
  write_file(file("data/a_train.bin"), good.substr(0, 1500));
  for (const std::string ranks : {"1", "2"}) {
    expect_user_error(train({"--ranks", ranks}), "data/a_train.bin: the header promises 2,000 tokens",
                      "incomplete");
  }
  EXPECT_FALSE(fs::exists(file("runs")));
}

TEST_F(DataFormats, TextIsNoData) {
  expect_user_error(train(), "data: no such data folder", "shoal prepare text FILE ... --out data");
  write_file(file("data/book.txt"), "Call me Ishmael.");
  expect_user_error(train(), "data: no dataset but other files, such as book.txt",
                    "`shoal prepare text data --out data-tokens`", "data.dir=data-tokens");
  expect_user_error(train({"data.dir=data/book.txt"}),
                    "`shoal prepare text data/book.txt --out data/book-tokens`");
  expect_user_error(shoal({"prepare", "data/book.txt"}), "is no dataset but a file",
                    "shoal prepare text data/book.txt --out data/book");
  expect_user_error(shoal({"prepare", "data/"}), "is no dataset but a folder", "--out data/data");
  expect_user_error(shoal({"prepare", "txt"}), "unknown dataset \"txt\": did you mean text?", "synthetic");
}

TEST_F(DataFormats, LittleTextIsWarnedOf) {
  write_file(file("a.md"), fmt::format("{:a>400}\n", ""));
  write_file(file("b.md"), fmt::format("{:b>100}\n", ""));
  write_file(file("notes/c.md"), fmt::format("{:c>500}\n", ""));
  write_file(file("notes/picture.png"), std::string("\x89PNG\0\0", 6));
  const Settings prepare = {"prepare",     "text", "a.md",  "b.md", "notes",
                            "--tokenizer", "char", "--out", "data"};
  const auto result = shoal(prepare);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("data: 900 train and 103 val tokens"));
  EXPECT_THAT(result.err, HasSubstr("val.bin has only 103 tokens"));
  EXPECT_THAT(result.err, HasSubstr("--val-fraction"));
  const auto named = result.err.find("notes/picture.png");
  EXPECT_NE(named, std::string::npos);
  EXPECT_EQ(result.err.find("notes/picture.png", named + 1), std::string::npos) << result.err;  // once
  train_well({"train.steps=1"});

  expect_user_error(shoal(prepare), "data holds a dataset of 20", "text from a.md and 2 more", "--force");
  expect_user_error(train({"model.block_size=103", "run.name=long"}), "data/val.bin has 103 tokens",
                    "model.block_size = 103 needs at least 104");
}

TEST_F(DataFormats, FaultsOfPrepareNameTheOptionsThatMendThem) {
  write_file(file("a.txt"), "a");
  const auto prepare = [&](const Settings& more) {
    return shoal(with({"prepare", "text", "a.txt", "--tokenizer", "bytes"}, more));
  };
  expect_user_error(prepare({"--out", "new"}), "the train split is empty", "--val-fraction");
  expect_user_error(prepare({"--out", "new", "--truncate", "0.5"}), "leaves none of the 1",
                    "raise --truncate");
  expect_user_error(prepare({"--out", "a.txt"}), "a.txt: exists and is no folder", "choose another --out");
  expect_user_error(prepare({"--out", ""}), "has no name", "choose another --out");
  write_file(file("other/thesis.txt"), "precious");
  expect_user_error(prepare({"--out", "other", "--force"}), "other than a dataset", "choose another --out");
  expect_user_error(shoal({"prepare", "synthetic", "--truncate", "0.5", "--out", "new"}),
                    "synthetic takes no --truncate", "`shoal prepare text`");
  expect_user_error(prepare({"--out", "new", "--size", "4000000"}), "text takes no --size; synthetic does");
  expect_user_error(shoal({"prepare", "synthetic", "--out", "new", "--field", "body"}),
                    "synthetic takes no --field; text and openwebtext do");
  expect_user_error(prepare({"--out", "new", "--save-every", "5"}),
                    "text takes no --save-every; openwebtext does");
}

TEST_F(DataFormats, TheVocabularyOfGpt2IsNamedWhenItCannotBeHad) {
  write_file(file("a.txt"), "some text");
  const auto result =
      run({"prepare", "text", "a.txt", "--out", "data", "--from", "file://" + file("none").string()},
          folder_.path(), {"XDG_CACHE_HOME=" + file("cache").string()});
  expect_user_error_at_the_end(result, "gpt2/encoder.json and gpt2/vocab.bpe",
                               file("cache/shoal/gpt2/vocab.bpe").string(), "SHOAL_DATA_DIR",
                               "--tokenizer char");
  write_file(file("a.txt"), "PAR1 and columns");  // an error that no vocabulary would fix
  expect_user_error_at_the_end(shoal({"prepare", "text", "a.txt", "--out", "data", "--from", "absent"}),
                               "a.txt: a Parquet file");
}

}  // namespace
}  // namespace shoal::test
