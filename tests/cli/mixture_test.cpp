// Runs on several datasets that are drawn from by weight.
#include <nlohmann/json.hpp>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// "prose" and "digits", of which a model knows at once which one it reads.
class Mixtures : public TinyRuns {
 protected:
  void SetUp() override {
    std::string prose, digits;
    for (int i = 0; i < 400; ++i) {
      prose += "The river runs to the sea, and nobody asks it why.\n";
      digits += std::to_string(i * 7919 % 1000) + " ";
    }
    for (const auto& [name, text] : {std::pair{"prose", prose}, std::pair{"digits", digits}}) {
      write_file(file(std::string(name) + ".txt"), text);
      const auto result =
          shoal({"prepare", "text", std::string(name) + ".txt", "--tokenizer", "bytes", "--out", name});
      ASSERT_EQ(result.code, 0) << result.err;
    }
  }
  const std::string dirs_ = "data.dirs={prose = 3, digits = 1}";
  std::vector<nlohmann::json> metrics(const std::string& run, const std::string& key) const {
    std::vector<nlohmann::json> values;
    std::istringstream lines(read_file(file("runs") / run / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains(key)) values.push_back(record[key]);
    }
    return values;
  }
};

TEST_F(Mixtures, AreTheSameOnAnyRanksAndAfterAResume) {
  const Settings exact = {dirs_, "run.deterministic=layout", "train.micro_batch=1"};
  train_well(with(exact, {"run.name=one"}));
  train_well(with(exact, {"run.name=two", "--ranks", "2", "train.steps=10"}));
  const auto resumed = train(with(
      exact, {"run.name=two", "--ranks", "4", "parallel.pipeline=2", "init.from=resume", "train.steps=20"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("data: digits 25 %, prose 75 % ("));
  expect_same("two", "one");
}

// The val loss is the mean of the sources' losses by their weights.
TEST_F(Mixtures, AreEvaluatedBySource) {
  const auto run = train({dirs_});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("Val loss: [0-9.]+ \\(digits [0-9.]+, prose [0-9.]+\\)"));
  const auto losses = metrics("tiny", "val_losses"), all = metrics("tiny", "val_loss");
  ASSERT_EQ(losses.size(), 3u);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double prose = losses[i]["prose"], digits = losses[i]["digits"];
    EXPECT_NEAR(all[i], 0.75 * prose + 0.25 * digits, 1e-12);
  }
  const auto evaluated = shoal({"eval", "--checkpoint", "runs/tiny"});
  EXPECT_THAT(evaluated.out,
              AllOf(HasSubstr("val of digits after step 20"), HasSubstr("val of prose after step 20"),
                    HasSubstr("the mixture (data.dirs): loss ")));
  EXPECT_THAT(shoal({"eval", "--checkpoint", "runs/tiny", "data.dir=prose"}).out, Not(HasSubstr("digits")));
}

TEST_F(Mixtures, MistakesAreNamed) {
  expect_user_error(train({"data.dirs={prose = 0, digits = 1}"}), "data.dirs", "above 0");
  expect_user_error(train({"data.dirs={prose = \"much\"}"}), "data.dirs", "a table of names and numbers");
  expect_user_error(train({dirs_, "data.sampling=epochs"}), "data.dirs", "no epochs");
  expect_user_error(train({dirs_, "data.dir=data"}), "data.dir", "data.dirs", "give one of them");
  expect_user_error(train({"data.dirs={prose = 1, data = 1}"}), "vocabulary",
                    "prepare both with one tokenizer");
  expect_user_error(train({"data.dirs={prose = 1, none = 1}"}), "none");
  train_well({dirs_});
  expect_user_error_at_the_end(train({"data.dir=prose", "init.from=resume"}), "trained on other data",
                               "data.dirs");
  // The weights may change: a run in two parts.
  train_well({"data.dirs={prose = 1, digits = 3}", "init.from=resume", "train.steps=22"});
}

}  // namespace
}  // namespace shoal::test
