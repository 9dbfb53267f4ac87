// shoal schedule: the picture in the terminal, the partition of the model, and the SVG.
#include <sstream>

#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kScheduled = R"(
[data]
dir = "data"
[model]
preset = "gpt2"
[train]
steps = 2
global_batch = 32
micro_batch = 4
)";

class ScheduleCommand : public testing::Test {
 protected:
  void SetUp() override { write_file(folder_ / "a.toml", kScheduled); }

  Result schedule(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"schedule", "a.toml"});
    return run(arguments, folder_.path(), {"COLUMNS=100"});
  }
  std::string shown(const std::vector<std::string>& arguments) const {
    const auto result = schedule(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }

  TempDir folder_;
};

TEST_F(ScheduleCommand, DrawsTheConfigsPipeline) {
  const auto out = shown({"parallel.pipeline=4"});
  EXPECT_THAT(out, HasSubstr("1F1B on 4 ranks, 8 micro-batches (global batch 32 / micro-batch 4)"));
  EXPECT_THAT(out, HasSubstr(
                       R"(
rank 0 |0|1|2|3|           |0==|4|1==|5|2==|6|3==|7|4==| |5==| |6==| |7==|
rank 1   |0|1|2|       |0==|3|1==|4|2==|5|3==|6|4==|7|5==| |6==| |7==|
rank 2     |0|1|   |0==|2|1==|3|2==|4|3==|5|4==|6|5==|7|6==| |7==|
rank 3       |0|0==|1|1==|2|2==|3|3==|4|4==|5|5==|6|6==|7|7==|
)"));
  EXPECT_THAT(out, HasSubstr("|3  forward pass of micro-batch 3, |3== its backward pass\n"));
  EXPECT_THAT(out, HasSubstr("   0 17.8 %            4  embedding, block.0-2\n"));
  EXPECT_THAT(out, HasSubstr("   3 34.9 %            1  block.11, head\n"));
  EXPECT_THAT(out, HasSubstr("ranks wait 27.3 %"));
  EXPECT_THAT(out, HasSubstr("(P - 1) / (M + P - 1) = 27.3 %"));
  EXPECT_THAT(out, Not(HasSubstr("\033"))) << "colour is for terminals";
}

TEST_F(ScheduleCommand, DrawsChunks) {
  const auto out = shown({"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2",
                          "parallel.stages=4,3,3,2", "--micro-batches", "2"});
  EXPECT_THAT(out, HasSubstr("2 micro-batches (--micro-batches)"));
  EXPECT_THAT(out, HasSubstr(R"(
rank 0 |0a|1a|0b|1b|     |0b===|  |1b===|0a===|1a===|
rank 1    |0a|1a|0b|0b===|1b|1b===|0a===|1a===|
)"));
  EXPECT_THAT(out, HasSubstr("a: embedding, block.0-3; b: block.7-9\n"));
  EXPECT_THAT(out, HasSubstr("by hand (parallel.stages)"));
  EXPECT_THAT(out, HasSubstr("(P - 1) / (v M + P - 1) = 20.0 %"));
}

TEST_F(ScheduleCommand, CutsTheMiddleOutOfLongLines) {
  const auto out = shown({"parallel.pipeline=4", "parallel.schedule=gpipe", "--micro-batches", "200"});
  EXPECT_THAT(out, HasSubstr("% of the step is left out, which does not fit into 100 columns"));
  EXPECT_THAT(out, HasSubstr("|199====|")) << "the end is there";
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("rank ")) {
      EXPECT_LE(line.size(), 100u) << line;
    }
  }
}

TEST_F(ScheduleCommand, ADataParallelRankHasItsShareOfTheMicroBatches) {
  EXPECT_THAT(shown({"parallel.pipeline=2", "parallel.data=3"}),
              HasSubstr("3 micro-batches (global batch 32 / micro-batch 4 / 3 data-parallel ranks)"));
  EXPECT_THAT(shown({"parallel.pipeline=2", "train.micro_batch=0", "run.deterministic=layout"}),
              HasSubstr("8 micro-batches (global batch 32 / micro-batch 4)"));
}

TEST_F(ScheduleCommand, PrintsActions) {
  const auto out = shown({"parallel.pipeline=2", "--micro-batches", "1", "--actions"});
  EXPECT_EQ(out,
            "rank 0\n  forward 0.0\n  send output 0.0\n  receive gradient 0.0\n  backward 0.0\n"
            "rank 1\n  receive input 0.0\n  forward 0.0\n  backward 0.0\n  send gradient 0.0\n");
}

TEST_F(ScheduleCommand, WritesAnSvg) {
  shown({"parallel.pipeline=4", "--svg", "a.svg"});
  const auto svg = read_file(folder_ / "a.svg");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count(svg, "<g>"), 4 * 8 * 2) << "every pass";
  EXPECT_EQ(count(svg, "<g>"), count(svg, "</g>"));
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_THAT(svg, HasSubstr("1F1B on 4 ranks, 8 micro-batches"));
}

TEST_F(ScheduleCommand, CutsTheMiddleOutOfLongPictures) {
  EXPECT_THAT(shown({"parallel.pipeline=4", "--micro-batches", "120", "--svg", "long.svg"}),
              HasSubstr("wrote long.svg ("));
  const auto svg = read_file(folder_ / "long.svg");
  const auto at = svg.find("width=\"");
  ASSERT_NE(at, std::string::npos);
  EXPECT_LT(std::stoi(svg.substr(at + 7)), 1600);
  EXPECT_THAT(svg, HasSubstr("of the step, is left out"));
  EXPECT_EQ(count(svg, ">...</text>"), 4);
  EXPECT_THAT(svg, HasSubstr(">119</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">60</text>")));
}

TEST_F(ScheduleCommand, RefusesWhatCannotBe) {
  expect_user_error(schedule({"parallel.pipeline=13"}), "13 ranges", "model.n_layer = 12");
  expect_user_error(schedule({"parallel.pipeline=2", "parallel.stages=6,5"}), "parallel.stages", "11 blocks");
  expect_user_error(schedule({"parallel.pipeline=2", "--svg", "a.png"}), "name it a.svg");
  expect_user_error(schedule({"parallel.pipeline=2", "--svg", "absent/a.svg"}), "absent/a.svg");
  expect_user_error(schedule({"--micro-batches", "0"}), "--micro-batches");
}

}  // namespace
}  // namespace shoal::test
