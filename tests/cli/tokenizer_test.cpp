// A tokenizer of one's own: learnt from a text, and taken by every command that follows.
#include <sstream>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string story(int sentences) {
  const char* const who[] = {"The river", "A stone", "My garden", "The castle", "An island"};
  const char* const does[] = {"is older than", "lies behind", "was built for", "looks like"};
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += std::string(who[i % 5]) + " " + does[i * i % 4] + " the " + std::to_string(i % 17) + " hills.\n";
  }
  return text;
}

class OwnTokenizer : public TinyRuns {
 protected:
  OwnTokenizer() { write_file(file("story.txt"), story(600)); }
  Result well(const Settings& arguments) const {
    const auto result = shoal(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }
};

TEST_F(OwnTokenizer, IsLearntTrainedSampledAndExported) {
  const auto prepared =
      well({"prepare", "text", "--from", "story.txt", "--tokenizer", "bpe:400", "--out", "own"});
  EXPECT_THAT(prepared.out, ContainsRegex("^own: [0-9,]+ train and [0-9,]+ val tokens, vocabulary [0-9]+\n"));
  EXPECT_THAT(prepared.out, HasSubstr("vocab.json and merges.txt in own; --tokenizer own takes it"));
  EXPECT_THAT(prepared.err, ContainsRegex("the tokenizer has 3[0-9][0-9] tokens, not 400: no more pairs"));

  const auto end = read_file(file("own/vocab.json"));
  const auto size = prepared.out.substr(prepared.out.find("vocabulary ") + 11, 3);
  EXPECT_THAT(end, HasSubstr("\"<|endoftext|>\": " + std::to_string(std::stoi(size) - 1) + "}"));

  train_well({"data.dir=own", "run.name=own", "model.block_size=32"});
  const auto sample =
      well({"sample", "--checkpoint", "runs/own", "--prompt", "The river", "--max-tokens", "20"});
  EXPECT_THAT(sample.out, StartsWith("The river"));
  EXPECT_GT(sample.out.size(), std::string("The river\n").size());
  EXPECT_THAT(well({"eval", "--checkpoint", "runs/own"}).err, Not(HasSubstr("another tokenizer")));

  const auto exported = well({"export", "--checkpoint", "runs/own", "--out", "hf"});
  EXPECT_THAT(exported.out, HasSubstr("the data's own BPE: vocab.json and merges.txt"));
  for (const char* name : {"vocab.json", "merges.txt"}) {
    EXPECT_EQ(read_file(file("hf") / name), read_file(file("own") / name));
  }
  EXPECT_THAT(read_file(file("hf/config.json")),
              HasSubstr("\"eos_token_id\": " + std::to_string(std::stoi(size) - 1)));
  // The exported folder is a tokenizer, and a model that knows it.
  well({"prepare", "text", "story.txt", "--tokenizer", "hf", "--out", "again"});
  EXPECT_EQ(read_file(file("again/train.bin")), read_file(file("own/train.bin")));
  const auto weights = well({"eval", "--checkpoint", "hf", "data.dir=again", "train.threads=1",
                             "train.global_batch=4", "train.micro_batch=2"});
  EXPECT_THAT(weights.err, Not(HasSubstr("another tokenizer")));
  EXPECT_EQ(
      well({"sample", "--checkpoint", "hf", "--prompt", "The river", "--max-tokens", "20", "train.threads=1"})
          .out,
      sample.out);
}

TEST_F(OwnTokenizer, MistakesAreNamed) {
  const auto prepare = [&](const std::string& dataset, const Settings& more) {
    return shoal(with({"prepare", dataset, "--out", "new"}, more));
  };
  expect_user_error(prepare("text", {"story.txt", "--tokenizer", "bpe:12"}), "--tokenizer",
                    "\"bpe:12\" has no size from 258 to 1,048,576");
  expect_user_error(prepare("text", {"story.txt", "--tokenizer", "gtp2"}), "\"gtp2\" is unknown",
                    "did you mean gpt2?", "bpe:SIZE");
  expect_user_error(prepare("text", {"story.txt", "--tokenizer", "data"}),
                    "data has neither vocab.bpe nor merges.txt");
  expect_user_error(prepare("shakespeare", {"--tokenizer", "bpe:300"}), "shakespeare: the tokenizer is gpt2",
                    "`shoal prepare text`");
  expect_user_error(prepare("synthetic", {"--tokenizer", "bytes"}), "the tokenizer is char");
  expect_user_error(prepare("openwebtext", {"--from", "story.txt", "--tokenizer", "bytes"}),
                    "openwebtext: the tokenizer is gpt2");
  expect_user_error(prepare("text", {}), "shoal prepare text FILE");
  EXPECT_FALSE(fs::exists(file("new")));
}

TEST_F(OwnTokenizer, WikiTextTakesOne) {
  for (const char* split : {"train", "valid", "test"}) {
    write_file(file("wiki") / (std::string("wiki.") + split + ".raw"), " \n = Hills = \n \n" + story(80));
    write_file(file("words") / (std::string("wiki.") + split + ".tokens"), " \n = Hills = \n \n <unk> hills");
  }
  const auto raw =
      well({"prepare", "wikitext-2", "--from", "wiki", "--tokenizer", "bpe:280", "--out", "raw"});
  EXPECT_THAT(raw.out,
              ContainsRegex("^raw: [0-9,]+ train, [0-9,]+ val and [0-9,]+ test tokens, vocabulary 280\n"));
  well({"prepare", "wikitext-103", "--from", "words", "--unk", "--tokenizer", "bytes", "--out", "unk"});

  const auto prepare = [&](const Settings& more) {
    return shoal(with({"prepare", "wikitext-2", "--out", "new", "--tokenizer", "bytes"}, more));
  };
  expect_user_error(prepare({"--from", "words"}), "words holds the text with <unk>", "--unk takes it");
  expect_user_error(prepare({"--from", "wiki", "--unk"}), "wiki holds the raw text", "leave out --unk");
  expect_user_error(prepare({"--from", "wiki", "--val-fraction", "0.2"}), "takes no --val-fraction");
  expect_user_error(prepare({"--from", "wiki", "--val", "story.txt"}), "takes no --val");
  expect_user_error(prepare({"story.txt"}), "takes no input files");
  expect_user_error(prepare({"--from", "wiki", "words"}), "one file or folder");
  expect_user_error(shoal({"prepare", "text", "story.txt", "--unk", "--out", "new"}), "text takes no --unk",
                    "wikitext-2");
  const auto offline =
      run({"prepare", "wikitext-103", "--out", "new", "--from", "file://" + file("none").string()},
          folder_.path(), {"XDG_CACHE_HOME=" + file("cache").string()});
  expect_user_error_at_the_end(offline, "wikitext-103-raw-v1.zip", "https://wikitext.smerity.com",
                               file("cache/shoal/wikitext-103-raw-v1.zip").string());
  EXPECT_FALSE(fs::exists(file("new")));
}

}  // namespace
}  // namespace shoal::test
