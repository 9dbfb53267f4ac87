// The config for fine-tuning on WikiText, as a user runs it: text in given splits, weights in Hugging Face's
// format, a model shared by ranks, and the result on the test split.
#include "cli/tiny_runs.h"
#include "data/temp_folder.h"

namespace shoal::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string articles(int first, int count) {
  const char* const words[] = {"river", "battle", "album", "species", "station", "season", "castle"};
  std::string text;
  for (int i = first; i < first + count; ++i) {
    const std::string title = words[i % 7], other = words[i * i % 5];
    text += " \n = The " + title + " = \n \n The " + title + " of the " + other +
            " is known for its history , and was first named in the year " + std::to_string(1100 + i) +
            " . It is larger than the other " + other + " , but not as old . \n";
  }
  return text;
}

class WikiText : public TinyRuns {
 protected:
  void SetUp() override {
    SHOAL_NEEDS_SHARED("gpt2/encoder.json");
    write_file(file("wiki.train.raw"), articles(0, 50));
    write_file(file("wiki.valid.raw"), articles(50, 10));
    write_file(file("wiki.test.raw"), articles(60, 10));
    const auto gpt2 = fs::absolute(shared_data()).string();
    const auto prepared = well({"prepare", "text", "wiki.train.raw", "--val", "wiki.valid.raw", "--test",
                                "wiki.test.raw", "--out", "wiki", "--from", gpt2});
    EXPECT_THAT(
        prepared.out,
        ContainsRegex("^wiki: [0-9,]+ train, [0-9,]+ val and [0-9,]+ test tokens, vocabulary 50257\n"));
    // The initial model has more positions than the config's block_size.
    train_well({"data.dir=wiki", "model.block_size=32", "train.steps=5"});
    well({"export", "--checkpoint", "runs/tiny", "--out", "pretrained"});
  }
  Result well(const Settings& arguments) const {
    const auto result = shoal(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }
  Result tune(const std::string& name, const Settings& settings) const {
    const auto config = fs::path(SHOAL_SOURCE_DIR) / "configs/finetune-wikitext-fsdp.toml";
    return well(
        with({"train", config.string(), "run.name=" + name, "data.dir=wiki", "init.from=hf:pretrained",
              "model.n_layer=2", "model.n_head=2", "model.n_embd=16", "model.block_size=16",
              "train.threads=1", "optim.lr=1e-2", "run.deterministic=layout", "log.peak_tflops=0.1"},
             settings));
  }
  // The values of a key of metrics.jsonl, in order.
  std::vector<double> metric(const std::string& run, const std::string& key) const {
    const auto text = read_file(file("runs") / run / "metrics.jsonl"), begin = "\"" + key + "\":";
    std::vector<double> values;
    for (auto at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1))
      values.push_back(std::stod(text.substr(at + begin.size())));
    return values;
  }
};

TEST_F(WikiText, TheConfigTunesAlikeOnOneAndTwoRanks) {
  tune("one", {});
  const auto two = tune("two", {"--ranks", "2"});
  EXPECT_THAT(two.err, HasSubstr("parameters from the weights in pretrained"));
  EXPECT_THAT(two.err, HasSubstr("ZeRO stage 3"));
  const auto whole = tune("whole", {"--ranks", "2", "parallel.zero=0"});
  EXPECT_THAT(whole.err, HasSubstr("replicated"));
  expect_same("two", "one");
  expect_same("whole", "one");

  // Evaluations of the initial weights, and after each of the two epochs.
  const auto losses = metric("one", "val_loss");
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_LT(losses[1], losses[0]);
  EXPECT_LT(losses[2], losses[1]);
  EXPECT_EQ(metric("one", "val_accuracy").size(), 3u);
  const auto per_word = metric("one", "val_word_perplexity"), per_byte = metric("one", "val_byte_perplexity");
  ASSERT_EQ(per_word.size(), 3u);
  // A word has several tokens and a token several bytes; the exponents are as their numbers.
  EXPECT_GT(std::log(per_word[2]), losses[2]);
  EXPECT_LT(std::log(per_byte[2]), losses[2]);
  EXPECT_EQ(metric("one", "test_word_perplexity").size(), 1u);

  for (const std::string split : {"val", "test"}) {
    const auto alone = well({"eval", "--checkpoint", "runs/one", "--split", split});
    EXPECT_THAT(alone.out, StartsWith(split + " of wiki after step "));
    for (const auto* figure : {"\nloss  ", "\nperplexity  ", " per word, ", "\naccuracy  "})
      EXPECT_THAT(alone.out, HasSubstr(figure));
    EXPECT_EQ(well({"eval", "--checkpoint", "runs/two", "--split", split, "--ranks", "2"}).out, alone.out);
  }
}

TEST_F(WikiText, GreedyTextIsTheSameWhateverTheSeed) {
  tune("tuned", {"train.epochs=1"});
  for (const std::string checkpoint : {"runs/tuned", "pretrained"}) {
    const auto sample = [&](const std::string& seed) {
      return well({"sample", "--checkpoint", checkpoint, "--prompt", " = The river = ", "--temperature", "0",
                   "--max-tokens", "100", "--seed", seed});
    };
    const auto first = sample("1");
    EXPECT_THAT(first.out, StartsWith(" = The river = "));
    EXPECT_EQ(sample("2").out, first.out);
  }
}

TEST(Splits, MistakesAreNamed) {
  const TempDir folder;
  write_file(folder / "a.txt", "a");
  write_file(folder / "b.txt", "b");
  const auto prepare = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"prepare"});
    arguments.insert(arguments.end(), {"--tokenizer", "bytes", "--out", "data"});
    return run(arguments, folder.path());
  };
  expect_user_error(prepare({"text", "a.txt", "--val", "b.txt", "--val-fraction", "0.1"}),
                    "--val and --val-fraction");
  expect_user_error(prepare({"text", "--val", "b.txt"}), "shoal prepare text FILE");
  expect_user_error(prepare({"synthetic", "--val", "b.txt"}), "synthetic takes no --val",
                    "shoal prepare text");
  expect_user_error(prepare({"text", "a.txt", "b.txt", "--test", "./b.txt"}), "b.txt", "share text");
  EXPECT_FALSE(fs::exists(folder / "data"));
}

}  // namespace
}  // namespace shoal::test
