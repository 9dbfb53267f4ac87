// A first session: prepare, train, evaluate, plot, and the output of each.
#include "cli/tiny_runs.h"
#include "core/text.h"

namespace shoal::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

std::string after(const std::string& text, const std::string& words) {
  const auto at = text.rfind(words);
  EXPECT_NE(at, std::string::npos) << words << " is not in\n" << text;
  return at == std::string::npos ? "" : text.substr(at + words.size(), 8);
}

TEST(EndToEnd, PrepareTrainEvaluatePlot) {
  const TempDir folder;
  const auto shoal = [&](const std::vector<std::string>& arguments) {
    const auto result = run(arguments, folder.path());
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  };
  const auto prepared = shoal({"prepare", "synthetic", "--out", "data", "--size", "20000"});
  EXPECT_THAT(prepared.out, ContainsRegex("^data: 2[0-9],[0-9]+ train and [0-9,]+ val tokens, vocabulary "));
  EXPECT_THAT(prepared.out, HasSubstr("entropy of the grammar: 0.4903 nats per token"));

  write_file(folder / "tiny.toml", kTinyConfig);
  const auto trained = shoal({"train", "tiny.toml", "eval.batches=0"});
  EXPECT_EQ(trained.out, "");
  EXPECT_THAT(trained.err, HasSubstr("model: 2 layers, 2 heads, width 16, block 16, vocabulary "));
  EXPECT_THAT(trained.err,
              HasSubstr("run: 20 steps of 4 sequences = 64 tokens in micro-batches of 2, float32"));
  EXPECT_THAT(trained.err, HasSubstr("entropy is 0.4903 nats per token"));
  EXPECT_THAT(trained.err, HasSubstr("Step 0, Val loss: "));
  EXPECT_THAT(trained.err,
              ContainsRegex("step 10/20  loss [0-9.]+ \\(floor 0.4903\\)  lr [0-9.e+-]+  grad norm "
                            "[0-9.]+  [0-9.kM]+ tokens/s  [0-9.]+ ms/step  .*ETA "));
  EXPECT_THAT(trained.err, HasSubstr("done: 20 steps in "));
  EXPECT_THAT(trained.err, HasSubstr("the run is in runs/tiny"));
  // The log of the run equals the console's output.
  EXPECT_EQ(read_file(folder / "runs/tiny/train.log"), trained.err);

  const auto evaluated = shoal({"eval", "--checkpoint", "runs/tiny"});
  EXPECT_THAT(evaluated.out, StartsWith("val of data after step 20, every token once: "));
  EXPECT_THAT(shoal({"eval", "--checkpoint", "runs/tiny", "eval.sequences=3"}).out,
              StartsWith("val of data after step 20, 3 random sequences: "));
  EXPECT_EQ(after(evaluated.out, "loss        "), after(trained.err, "Val loss: "));
  EXPECT_THAT(evaluated.out, ContainsRegex("perplexity  [0-9.]+ per token\n"));
  EXPECT_THAT(evaluated.out, ContainsRegex("accuracy    [0-9.]+ % of next tokens\n"));
  EXPECT_THAT(evaluated.out,
              ContainsRegex("floor       0\\.[0-9]+ nats per token, this split's own entropy\n"));
  EXPECT_THAT(
      shoal({"eval", "--checkpoint", "runs/tiny/checkpoints/best", "--split", "train", "--batches", "3"}).out,
      StartsWith("train of data after step 20, 12 random sequences: 192 tokens\n"));
  EXPECT_EQ(shoal({"eval", "--checkpoint", "runs/tiny", "--sequences", "12"}).out,
            shoal({"eval", "--checkpoint", "runs/tiny", "--batches", "3"}).out);

  EXPECT_THAT(shoal({"plot", "runs/tiny", "-o", "curve.svg"}).out, StartsWith("wrote curve.svg"));
  EXPECT_THAT(read_file(folder / "curve.svg"), HasSubstr("<svg"));
}

using EvalCommand = TinyRuns;

TEST_F(EvalCommand, FindsTheDataOfARunFromAnotherFolder) {
  train_well();
  fs::create_directories(file("elsewhere"));
  const auto checkpoint = (file("runs") / "tiny").string();
  const auto here = shoal({"eval", "--checkpoint", "runs/tiny"});
  const auto there = run({"eval", "--checkpoint", checkpoint}, file("elsewhere"));
  EXPECT_EQ(there.code, 0) << there.err;
  EXPECT_EQ(after(there.out, "loss        "), after(here.out, "loss        "));
  // After the move, a relative data.dir is searched in the current folder.
  fs::rename(file("data"), file("moved"));
  expect_user_error(run({"eval", "--checkpoint", checkpoint}, file("elsewhere")),
                    "data: no such data folder in ", "/elsewhere; give the data's folder, data.dir=FOLDER");
  const auto given = run({"eval", "--checkpoint", checkpoint, "data.dir=../moved"}, file("elsewhere"));
  EXPECT_EQ(after(given.out, "loss        "), after(here.out, "loss        "));
}

TEST_F(EvalCommand, WarnsOfDataOfAnotherTokenizer) {
  train_well();
  EXPECT_THAT(shoal({"eval", "--checkpoint", "runs/tiny"}).err, testing::Not(HasSubstr("vocabulary")));
  // Data with a smaller vocabulary than the model's.
  write_file(file("text.txt"), "bcd" + std::string(4000, 'a'));
  ASSERT_EQ(shoal({"prepare", "text", "text.txt", "--out", "other", "--tokenizer", "char"}).code, 0);
  const auto result = shoal({"eval", "--checkpoint", "runs/tiny", "data.dir=other"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("other has a vocabulary of 4, the model one of "));
  EXPECT_THAT(result.err, HasSubstr("it was prepared with another tokenizer"));
  // A folder of nanoGPT, which has the tokenizer in a separate file.
  write_file(file("nanogpt/train.bin"), std::string(400, '\0'));
  write_file(file("nanogpt/val.bin"), std::string(400, '\0'));
  fs::copy(SHOAL_SOURCE_DIR "/tests/data/fixtures/nanogpt/meta-3.pkl", file("nanogpt/meta.pkl"));
  EXPECT_THAT(shoal({"eval", "--checkpoint", "runs/tiny", "data.dir=nanogpt"}).err,
              HasSubstr("nanogpt has a vocabulary of 10, the model one of "));
}

// The floor is that of the whole split.
TEST_F(EvalCommand, LeavesOutWhatTheRunDidNotTrainOn) {
  train_well({"data.truncate=0.5", "train.steps=1"});
  const auto targets = [&](const std::string& split, int divisor) {
    const auto tokens = static_cast<std::int64_t>(fs::file_size(file("data/" + split + ".bin"))) / 2;
    return "every token once: " + with_commas(tokens / divisor - 1) + " tokens\n";
  };
  const auto train = shoal({"eval", "--checkpoint", "runs/tiny", "--split", "train"}).out;
  EXPECT_THAT(train, HasSubstr(targets("train", 2)));
  EXPECT_THAT(train, testing::Not(HasSubstr("floor")));
  const auto val = shoal({"eval", "--checkpoint", "runs/tiny"}).out;
  EXPECT_THAT(val, testing::AllOf(HasSubstr(targets("val", 1)), HasSubstr("floor")));
}

TEST_F(EvalCommand, SaysWhatItTakes) {
  train_well();
  const Settings eval = {"eval", "--checkpoint", "runs/tiny"};
  expect_user_error(shoal(with(eval, {"--split", "tset"})), "--split", "val", "train", "test");
  expect_user_error(shoal(with(eval, {"--batches", "-1"})), "--batches", "integer", "0");
  expect_user_error(shoal(with(eval, {"--sequences", "many"})), "--sequences", "integer", "0");
  expect_user_error(shoal(with(eval, {"--sequences", "4", "--batches", "1"})), "--sequences", "--batches");
  expect_user_error_at_the_end(shoal(with(eval, {"--batches", "1000000000000"})),
                               "eval.batches = 1000000000000", "more than 1,099,511,627,776 sequences");
}

}  // namespace
}  // namespace shoal::test
