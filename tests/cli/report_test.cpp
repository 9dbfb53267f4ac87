// shoal report: the page of runs, once and while a run goes on.
#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kTwoSteps =
    R"({"step":0,"train_loss":4.2,"val_loss":4.25})"
    "\n"
    R"({"step":10,"loss":3.1,"lr":0.001,"grad_norm":1.5,"tokens":1000,"tokens_per_s":5000,"ms_per_step":2})"
    "\n";

TEST(Report, ShowsRunsOfAnyNameAndAge) {
  TempDir dir;
  write_file(dir / "runs/<b>a/metrics.jsonl", kTwoSteps);
  write_file(dir / "runs/new/metrics.jsonl", "");
  write_file(dir / "runs/written/metrics.jsonl", std::string(kTwoSteps) + R"({"step":20,"lo)");
  const auto result = run({"report", "runs/<b>a", "runs/new", "runs/written", "-o", "x.html"}, dir.path());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, testing::AllOf(HasSubstr("wrote x.html ("), HasSubstr("open it in a browser")));
  const auto page = read_file(dir / "x.html");
  EXPECT_THAT(page, HasSubstr(R"("name":"\u003cb>a")"));
  EXPECT_THAT(page, HasSubstr(R"("loss":{"x":[10],"y":[3.1]})"));
  EXPECT_THAT(page, HasSubstr("config.toml is not there"));
  EXPECT_THAT(page, Not(HasSubstr("<b>a")));
}

TEST(Report, RefusesWhatIsNotARunOrAPage) {
  TempDir dir;
  write_file(dir / "good/metrics.jsonl", kTwoSteps);
  write_file(dir / "damaged/metrics.jsonl", std::string(kTwoSteps) + "oops\n");
  fs::create_directories(dir / "bare");
  const auto report = [&](const std::string& name, const std::string& output = "x.html") {
    return run({"report", name, "-o", output}, dir.path());
  };
  expect_user_error(report("goood"), "no run goood", "did you mean good?");
  expect_user_error(report("bare"), "no metrics.jsonl");
  expect_user_error(report("damaged"), "damaged/metrics.jsonl:3:");
  expect_user_error(report("good", "x.svg"), "x.svg", "name it x.html");
  expect_user_error(report("good", "no/where/x.html"), "no/where/", "No such file or directory");
  EXPECT_FALSE(fs::exists(dir / "x.html"));
}

class ReportOfTinyRuns : public TinyRuns {};

TEST_F(ReportOfTinyRuns, FollowsARunUntilItEnds) {
  Process training(train_command({"run.name=live", "train.steps=1000000", "log.interval=1"}), folder_.path());
  ASSERT_TRUE(eventually([&] { return !read_file(file("runs/live/metrics.jsonl")).empty(); }));
  Process report({"report", "runs/live", "-o", "x.html", "--follow"}, folder_.path());
  ASSERT_TRUE(eventually([&] { return fs::exists(file("x.html")); }));
  const auto page = read_file(file("x.html"));
  EXPECT_THAT(page, HasSubstr(R"("refresh":5)"));
  EXPECT_THAT(page, HasSubstr(R"("state":"running")"));
  training.signal(SIGTERM);
  training.wait();
  const auto result = report.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the runs have ended"));
  const auto final_page = read_file(file("x.html"));
  EXPECT_THAT(final_page, HasSubstr(R"("refresh":0)"));
  EXPECT_THAT(final_page, HasSubstr(R"("state":"stopped")"));
  EXPECT_THAT(final_page, HasSubstr(R"("key":"optim.lr")"));  // the config's key that is not at its default
}

TEST_F(ReportOfTinyRuns, AFollowerThatIsInterruptedLeavesAPageAtRest) {
  Process training(train_command({"run.name=live", "train.steps=1000000"}), folder_.path());
  ASSERT_TRUE(eventually([&] { return !read_file(file("runs/live/metrics.jsonl")).empty(); }));
  Process report({"report", "runs/live", "-o", "x.html", "--follow"}, folder_.path());
  ASSERT_TRUE(eventually([&] { return fs::exists(file("x.html")); }));
  report.signal(SIGINT);
  const auto result = report.wait();
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped by SIGINT"));
  EXPECT_THAT(read_file(file("x.html")), HasSubstr(R"("refresh":0)"));
}

TEST_F(ReportOfTinyRuns, HasNothingToFollowOfAFinishedRun) {
  train_well({"run.name=done"});
  const auto result = shoal({"report", "runs/done", "-o", "x.html", "--follow"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no run is going on"));
  const auto page = read_file(file("x.html"));
  EXPECT_THAT(page, HasSubstr(R"("state":"finished")"));
  EXPECT_THAT(page, HasSubstr(R"("notes":[])"));
  EXPECT_THAT(page, HasSubstr(R"({"key":"ranks","values":["1"]})"));
}

}  // namespace
}  // namespace shoal::test
