// Texts that a model writes at the evaluations of its run.
#include <nlohmann/json.hpp>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

class SampledTextsOfRuns : public TinyRuns {
 protected:
  SampledTextsOfRuns() {
    write_file(file("text.txt"), std::string(3000, 'a') + " the end of it");
    EXPECT_EQ(shoal({"prepare", "text", "--from", "text.txt", "--tokenizer", "bytes", "--out", "bytes"}).code,
              0);
  }
  // The texts of each evaluation of a run with these settings.
  std::vector<Json> texts_of(const std::string& name, const Settings& settings) {
    train_well(
        with({"run.name=" + name, "data.dir=bytes", "train.steps=4", "eval.interval=2", "eval.samples=3",
              "eval.sample_prompt=the ", "eval.sample_tokens=40", "run.deterministic=layout"},
             settings));
    std::vector<Json> texts;
    std::istringstream lines(read_file(file("runs/" + name + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const auto json = Json::parse(line);
      if (json.contains("samples")) texts.push_back(json["samples"]);
    }
    return texts;
  }
};

// A text of 44 tokens is longer than the model's block of 16.
TEST_F(SampledTextsOfRuns, AreThoseOfTheCheckpoint) {
  const auto texts = texts_of("one", {});
  ASSERT_EQ(texts.size(), 3u) << "before the first step, and after two and four";
  EXPECT_NE(texts[0], texts[2]);
  const auto sampled = shoal({"sample", "--checkpoint", "runs/one", "--prompt", "the ", "--samples", "3",
                              "--max-tokens", "40", "--json"});
  std::istringstream lines(sampled.out);
  for (const auto& text : texts.back()) {
    std::string line;
    std::getline(lines, line);
    EXPECT_EQ(text, "the " + Json::parse(line)["text"].get<std::string>());
  }
}

TEST_F(SampledTextsOfRuns, DoNotDependOnTheLayout) {
  const auto texts = texts_of("one", {});
  EXPECT_EQ(texts_of("two", {"--ranks", "2"}), texts);
  EXPECT_EQ(texts_of("sharded", {"--ranks", "2", "parallel.zero=3"}), texts);
  EXPECT_EQ(texts_of("tensor", {"--ranks", "2", "parallel.tensor=2", "parallel.sequence=true"}).size(), 3u);
  EXPECT_EQ(texts_of("workers", {"--ranks", "2", "parallel.engine=gossip"}).size(), 3u);
}

TEST_F(SampledTextsOfRuns, AreRefusedWhereTheyCannotBeWritten) {
  fs::remove(file("data/meta.json"));
  EXPECT_THAT(train({"eval.samples=1", "model.vocab_size=64"}).err,
              HasSubstr("eval.samples needs a tokenizer"));
  EXPECT_THAT(train({"eval.samples=1", "--ranks", "2", "parallel.pipeline=2"}).err,
              HasSubstr("parallel.pipeline"));
}

}  // namespace
}  // namespace shoal::test
