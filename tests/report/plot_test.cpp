#include "report/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace shoal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> labels(double low, double high, int wanted) {
  const auto axis = Axis::around(low, high, wanted);
  std::vector<std::string> texts;
  for (const double tick : axis.ticks()) texts.push_back(axis.label(tick));
  return texts;
}

TEST(PlotAxis, TicksAreRoundAndCoverTheRange) {
  EXPECT_THAT(labels(0, 1000, 5), ElementsAre("0", "200", "400", "600", "800", "1000"));
  EXPECT_THAT(labels(1.21, 4.1, 6), ElementsAre("1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0", "4.5"));
  EXPECT_THAT(labels(0, 6e-4, 3), ElementsAre("0", "2e-4", "4e-4", "6e-4"));
  EXPECT_THAT(labels(0, 1e-3, 2), ElementsAre("0", "5e-4", "1e-3"));
  EXPECT_THAT(labels(0, 60000, 3), ElementsAre("0", "20k", "40k", "60k"));
  EXPECT_THAT(labels(0, 1.5e6, 3), ElementsAre("0", "0.5M", "1.0M", "1.5M"));
  EXPECT_THAT(labels(0, 2e30, 2), ElementsAre("0", "1e30", "2e30"));
}

TEST(PlotAxis, ARangeOfOneValueStillHasWidth) {
  for (const double value : {0.0, 3.0, -1e-5}) {
    const auto axis = Axis::around(value, value, 5);
    EXPECT_LT(axis.low, axis.high);
    EXPECT_LE(axis.low, value);
    EXPECT_GE(axis.high, value);
  }
}

TEST(Plot, ThinningKeepsSpikesAndGaps) {
  std::vector<PlotPoint> points;
  for (int i = 0; i < 10000; ++i) points.push_back({static_cast<double>(i), std::sin(i * 0.001)});
  points[5003].y = 100;
  points[7001].y = NAN;
  const auto few = thinned(points, 100);
  EXPECT_LT(few.size(), 500u);
  EXPECT_TRUE(std::ranges::any_of(few, [](const PlotPoint& p) { return p.y == 100; }));
  EXPECT_TRUE(std::ranges::any_of(few, [](const PlotPoint& p) { return std::isnan(p.y); }));
  EXPECT_TRUE(std::ranges::is_sorted(few, {}, &PlotPoint::x));
}

// Different floors have names and colours; one shared by several runs is drawn once.
TEST(Plot, EveryRunHasTheEntropyFloorOfItsOwnData) {
  const auto run = [](const std::string& name, double floor) {
    return PlotRun{name, {{}, {{.step = 0, .train_loss = 4, .val_loss = 4, .entropy_floor = floor}}}};
  };
  const auto count = [](const std::string& text, const std::string& word) {
    int found = 0;
    for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
    return found;
  };
  const std::vector<PlotRun> shared = {run("a", 1.5), run("b", 1.5)};
  EXPECT_EQ(count(plot_svg(shared), "entropy floor of the data 1.5000"), 1);
  EXPECT_EQ(count(plot_svg(shared), "stroke=\"#222222\" stroke-width=\"1.3\""), 1);
  const std::vector<PlotRun> several = {run("a", 1.5), run("b", 0.5)};
  const auto svg = plot_svg(several);
  EXPECT_THAT(svg, HasSubstr("entropy floor of a's data 1.5000"));
  EXPECT_THAT(svg, HasSubstr("entropy floor of b's data 0.5000"));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#0072B2\" stroke-width=\"1.3\""));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#D55E00\" stroke-width=\"1.3\""));
  const std::vector<PlotRun> one = {run("a", 1.5), run("b", NAN)};  // data without a floor
  EXPECT_THAT(plot_svg(one), HasSubstr("entropy floor of a's data 1.5000"));
}

PlotRun run_of(const std::string& name, const std::vector<double>& losses) {
  PlotRun run{.name = name, .metrics = {}};
  for (const double loss : losses)
    run.metrics.steps.push_back({.step = std::ssize(run.metrics.steps), .loss = loss});
  return run;
}

TEST(Plot, APointBetweenGapsIsADot) {
  const std::vector runs = {run_of("a", {NAN, 3, NAN, 3, NAN, 3, 4})};
  const auto svg = plot_svg(runs);
  const auto begin = svg.find("<path d=\""), end = svg.find("/>", begin);
  EXPECT_THAT(svg.substr(begin, end - begin),
              testing::AllOf(testing::ContainsRegex("M[0-9. ]+h0M[0-9. ]+h0M[0-9. ]+L[0-9. ]+\""),
                             HasSubstr("stroke-linecap=\"round\"")));
}

TEST(Plot, ARunOfOneRecordIsADot) {
  const std::vector runs = {run_of("a", {3})};
  EXPECT_THAT(plot_svg(runs),
              testing::ContainsRegex(
                  "<path d=\"M[0-9. ]+h0\" fill=\"none\" stroke-linecap=\"round\" style=\"stroke-width:5;"));
}

// The other losses stay visible.
TEST(Plot, TheLastLossesOfARunThatDivergesLeaveTheAxis) {
  std::vector<double> losses;
  for (int i = 0; i < 100; ++i) losses.push_back(4 - 0.01 * i);
  losses.insert(losses.end(), {50, 1e9, 1e30});
  const std::vector runs = {run_of("a", losses)};
  EXPECT_THAT(plot_svg(runs), testing::AllOf(HasSubstr(">3.0</text>"), HasSubstr(">4.0</text>"),
                                             testing::Not(HasSubstr("e30</text>"))));
}

TEST(Plot, NamesAreValidText) {
  const std::vector runs = {run_of("a\xff<b>&\x01", {1, 2})};
  EXPECT_THAT(plot_svg(runs), HasSubstr(">a\uFFFD&lt;b&gt;&amp; </text>"));
}

TEST(Plot, RunsWithAlmostNothingInThemAreDrawn) {
  const std::vector<PlotRun> runs = {
      {"only an evaluation", {{}, {{.step = 0, .train_loss = 4, .val_loss = 4}}}},
      {"only NaN", {{{.step = 10, .loss = NAN, .lr = NAN, .tokens_per_s = NAN}}, {}}}};
  const auto svg = plot_svg(runs);
  EXPECT_THAT(svg, HasSubstr("only an evaluation"));
  EXPECT_THAT(svg, HasSubstr("4.0000 at 0"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
  EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
}

}  // namespace
}  // namespace shoal
