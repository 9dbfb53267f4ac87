#include "checkpoint/file_size_limit.h"
#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;

constexpr const char* kMetrics =
    R"({"step":0,"train_loss":4.2,"val_loss":4.25,"entropy_floor":1.2})"
    "\n"
    R"({"step":10,"loss":3.1,"lr":0.001,"grad_norm":1.5,"tokens":1000,"tokens_per_s":5000,"ms_per_step":2,"peak_share":0.5})"
    "\n"
    R"({"step":20,"loss":null,"lr":0.0005,"grad_norm":1.5,"tokens":2000,"tokens_per_s":5100,"ms_per_step":2,"peak_share":0.5})"
    "\n"
    R"({"step":20,"train_loss":2.2,"val_loss":2.25,"entropy_floor":1.2})"
    "\n";

TEST(Plot, DrawsSeveralRunsIncludingOneThatIsBeingWritten) {
  TempDir dir;
  write_file(dir / "runs/a<b>/metrics.jsonl", kMetrics);
  write_file(dir / "runs/second/metrics.jsonl", std::string(kMetrics) + R"({"step":30,"lo)");
  const auto result = run({"plot", "runs/a<b>", "runs/second/metrics.jsonl", "-o", "x.svg"}, dir.path());
  ASSERT_EQ(result.code, 0) << result.err;
  const auto svg = read_file(dir / "x.svg");
  for (const auto* word : {"<svg ", "a&lt;b&gt;", ">second<", "2.2500", "entropy floor", "Learning rate",
                           "tokens/s", "</svg>"}) {
    EXPECT_THAT(svg, HasSubstr(word));
  }
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
}

TEST(Plot, ARunsNameMayHaveBrackets) {
  TempDir dir;
  write_file(dir / "[one,two]/metrics.jsonl", kMetrics);
  const auto result = run({"plot", "[one,two]", "--output=[x].svg"}, dir.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(read_file(dir / "[x].svg"), HasSubstr(">[one,two]<"));
}

TEST(Plot, RunsOfOneNameAreToldApartByPath) {
  TempDir dir;
  write_file(dir / "one/x/metrics.jsonl", kMetrics);
  write_file(dir / "two/x/metrics.jsonl", kMetrics);
  ASSERT_EQ(run({"plot", "one/x", "two/x", "-o", "x.svg"}, dir.path()).code, 0);
  const auto svg = read_file(dir / "x.svg");
  EXPECT_THAT(svg, HasSubstr(">one/x<"));
  EXPECT_THAT(svg, HasSubstr(">two/x<"));
}

TEST(Plot, RefusesWhatIsNotThereEmptyOrDamaged) {
  TempDir dir;
  write_file(dir / "good/metrics.jsonl", kMetrics);
  write_file(dir / "empty/metrics.jsonl", "");
  write_file(dir / "damaged/metrics.jsonl", std::string(kMetrics) + "oops\n" + kMetrics);
  fs::create_directories(dir / "bare");
  const auto plot = [&](const std::string& name, const std::string& output = "x.svg") {
    return run({"plot", name, "-o", output}, dir.path());
  };
  expect_user_error(plot("goood"), "no run goood", "did you mean good?");
  expect_user_error(plot("empty"), "empty/metrics.jsonl holds no records yet");
  expect_user_error(plot("damaged"), "damaged/metrics.jsonl:5:");
  expect_user_error(plot("bare"), "no metrics.jsonl");
  expect_user_error(plot("good", "x.png"), "x.svg");
  expect_user_error(plot("good", "no/where/x.svg"),
                    "cannot create no/where/x.svg: there is no folder no/where");
  EXPECT_FALSE(fs::exists(dir / "x.svg"));
}

TEST(Plot, KeepsTheOldPictureOnAFullDisk) {
  TempDir dir;
  write_file(dir / "good/metrics.jsonl", kMetrics);
  write_file(dir / "x.svg", "old");
  const auto result = [&] {
    const FileSizeLimit full(100);
    return run({"plot", "good", "-o", "x.svg"}, dir.path());
  }();
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(read_file(dir / "x.svg"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2);
}

}  // namespace
}  // namespace shoal::test
