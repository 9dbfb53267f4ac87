// Tasks scored by shoal eval, alike on any mesh.
#include "checkpoint/file_size_limit.h"
#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;

class TaskRuns : public TinyRuns {
 protected:
  // A model of bytes, whose tokenizer reads every text.
  TaskRuns() {
    write_file(file("text.txt"), std::string(4000, 'a') + " the end of it");
    EXPECT_EQ(shoal({"prepare", "text", "--from", "text.txt", "--tokenizer", "bytes", "--out", "bytes"}).code,
              0);
    train_well({"data.dir=bytes", "model.block_size=32", "train.steps=2"});
    write_file(file("choice.jsonl"),
               R"({"context":"aaaa","choices":["zzzz","aaaa","the end"],"answer":1}
{"context":"aa aaa","choices":["aaaa","q"],"answer":1}
{"context":"","choices":["aaaa","bbbbbb"],"answer":0}
)");
    write_file(file("words.jsonl"), "{\"text\":\"aaa aaa\"}\n{\"text\":\"the end\"}\n");
  }
  std::string score(const std::string& task, const Settings& settings = {}) const {
    fs::remove(file("items.jsonl"));
    const auto result = shoal(
        with({"eval", "--checkpoint", "runs/tiny", "--task", task, "--items", "items.jsonl"}, settings));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out + read_file(file("items.jsonl"));
  }
};

TEST_F(TaskRuns, TheLikeliestChoiceIsCounted) {
  const auto text = score("choice.jsonl");
  EXPECT_THAT(text, HasSubstr("task choice after step 2: 3 items"));
  EXPECT_THAT(text, HasSubstr("by length"));
  EXPECT_THAT(text, HasSubstr(R"({"item":1,"answer":1,"choice":)"));
  EXPECT_THAT(score("words.jsonl"), HasSubstr("per last word"));
}

TEST_F(TaskRuns, TheFileOfItemsIsCheckedFirst) {
  write_file(file("old.jsonl"), "old");
  expect_user_error(
      shoal({"eval", "--checkpoint", "runs/tiny", "--task", "words.jsonl", "--items", "old.jsonl"}),
      "--items old.jsonl exists");
  expect_user_error(
      shoal({"eval", "--checkpoint", "runs/tiny", "--task", "words.jsonl", "--items", "none/x"}),
      "cannot create none/x: No such file");
  EXPECT_EQ(read_file(file("old.jsonl")), "old");
}

// The score is there even if the items cannot be written.
TEST_F(TaskRuns, TheScoreIsPrintedBeforeTheItemsAreWritten) {
  const FileSizeLimit full(150);
  const auto result =
      shoal({"eval", "--checkpoint", "runs/tiny", "--task", "choice.jsonl", "--items", "items.jsonl"});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.out, HasSubstr("accuracy"));
  EXPECT_FALSE(fs::exists(file("items.jsonl")));
}

TEST_F(TaskRuns, DoNotDependOnTheRanks) {
  const auto one = score("choice.jsonl");
  EXPECT_EQ(score("choice.jsonl", {"--ranks", "2"}), one);
  EXPECT_EQ(score("choice.jsonl", {"--ranks", "2", "parallel.pipeline=2"}), one);
  EXPECT_EQ(score("choice.jsonl", {"--ranks", "3", "parallel.zero=3"}), one);
}

TEST_F(TaskRuns, AreScoredWhileARunTrains) {
  train_well({"run.name=scored", "data.dir=bytes", "model.block_size=32", "train.steps=2",
              "eval.tasks=choice.jsonl, words.jsonl", "--ranks", "2"});
  const auto metrics = read_file(file("runs/scored/metrics.jsonl"));
  EXPECT_THAT(metrics, HasSubstr("\"task_choice_accuracy\":"));
  EXPECT_THAT(metrics, HasSubstr("\"task_words_accuracy\":"));
  EXPECT_THAT(train({"run.name=none", "eval.tasks=nowhere.jsonl"}).err,
              HasSubstr("nowhere.jsonl cannot be read"));
}

TEST_F(TaskRuns, RefuseWhatIsNoTask) {
  const auto refused = [&](const std::string& task) {
    return shoal({"eval", "--checkpoint", "runs/tiny", "--task", task});
  };
  EXPECT_THAT(refused("nowhere.jsonl").err, HasSubstr("nowhere.jsonl cannot be read"));
  EXPECT_THAT(refused("text.txt").err, HasSubstr("text.txt:1: no item of a task"));
  for (const Settings& option : {Settings{"--split", "train"}, Settings{"--batches", "2"}}) {
    expect_user_error(shoal(with({"eval", "--checkpoint", "runs/tiny", "--task", "words.jsonl"}, option)),
                      "--task", option.front());
  }
  write_file(file("long.jsonl"),
             R"({"context":"a","choices":[")" + std::string(40, 'b') + R"("],"answer":0})");
  EXPECT_THAT(refused("long.jsonl").err, HasSubstr("task long, item 1"));
}

}  // namespace
}  // namespace shoal::test
