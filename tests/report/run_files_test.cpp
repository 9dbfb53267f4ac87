#include "report/run_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "report/finals.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class RunFilesTest : public testing::Test {
 protected:
  RunFilesTest() {
    std::string pattern = (fs::temp_directory_path() / "shoal-runs-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    for (const char* run : {"one/x", "two/x", "y"}) {
      fs::create_directories(folder_ / run);
      std::ofstream(folder_ / run / "metrics.jsonl") << "\n";
    }
  }
  ~RunFilesTest() override { fs::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

TEST_F(RunFilesTest, HaveTheirFoldersNamesOrWholePaths) {
  const std::vector<std::string> arguments = {path("one/x/"), path("two/x/metrics.jsonl"), path("y")};
  const auto runs = find_runs(arguments);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].name, arguments[0]);
  EXPECT_EQ(runs[1].name, arguments[1]);
  EXPECT_EQ(runs[2].name, "y");
  EXPECT_EQ(runs[1].folder, folder_ / "two/x");
  EXPECT_EQ(runs[2].metrics, folder_ / "y/metrics.jsonl");
}

TEST_F(RunFilesTest, ThatAreNotThereAreRefusedWithTheNearestName) {
  const auto refusal = [](const std::string& argument) -> std::string {
    try {
      find_runs(std::vector{argument});
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal(path("tvo")), AllOf(HasSubstr("there is no run"), HasSubstr("did you mean")));
  EXPECT_THAT(refusal(path("one")), HasSubstr("has no metrics.jsonl"));
  ASSERT_EQ(::mkfifo(path("one/metrics.jsonl").c_str(), 0600), 0);
  EXPECT_THAT(refusal(path("one")), HasSubstr("is not a regular file"));
}

TEST(Finals, TakeTheBestFiniteEvaluationAndMedians) {
  Metrics metrics;
  metrics.evals = {{.step = 0, .train_loss = 4, .val_loss = NAN, .entropy_floor = 1.5},
                   {.step = 5, .train_loss = 4, .val_loss = 2},
                   {.step = 9, .train_loss = 4, .val_loss = 3}};
  for (const double speed : {5.0, double{NAN}, 1.0, 0.0, 3.0})
    metrics.steps.push_back({.step = 1, .tokens_per_s = speed, .memory_per_rank = 10 * speed});
  const auto finals = finals_of(metrics);
  EXPECT_EQ(finals.best->step, 5);
  EXPECT_EQ(finals.last->step, 9);
  EXPECT_EQ(finals.entropy_floor, 1.5);
  EXPECT_EQ(finals.tokens_per_s, 3);  // of the known ones
  EXPECT_EQ(finals.memory_per_rank, 50);
  EXPECT_FALSE(finals.peak_share);
  EXPECT_FALSE(finals_of({}).last);
}

}  // namespace
}  // namespace shoal
