// shoal gossip: topologies and their properties, topology files, and predictions.
#include <sstream>

#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

class Gossip : public testing::Test {
 protected:
  Result gossip(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "gossip");
    return run(arguments, folder_.path());
  }
  std::string shown(const std::vector<std::string>& arguments) const {
    const auto result = gossip(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  Result with_file(std::string_view text, std::vector<std::string> more = {}) const {
    write_file(folder_ / "mine.toml", text);
    more.insert(more.begin(), {"topology", "mine.toml"});
    return gossip(more);
  }

  TempDir folder_;
};

// The line of a scheme in the table: its step in words, and the share of waiting.
std::pair<std::string, double> row(const std::string& out, const std::string& name) {
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    std::string step, unit;
    double idle = 0;
    rest >> step >> unit >> idle;
    return {step + " " + unit, idle};
  }
  ADD_FAILURE() << name << " is not in\n" << out;
  return {};
}

TEST_F(Gossip, PrintsRoundsAndFacts) {
  const auto out = shown({"topology", "alternating-exp-ring", "--workers", "8", "--local-size", "2"});
  EXPECT_THAT(out, HasSubstr("8 workers on 4 nodes of 2, a period of 4 rounds"));
  EXPECT_THAT(out, HasSubstr(R"(
round 0  {0 1} {2 3} {4-7}
round 1  {0-3} {4 5} {6 7}
round 2  {0 1} {2 3 6 7} {4 5}
round 3  {0 1 4 5} {2 3} {6 7}
)"));
  EXPECT_THAT(out, HasSubstr("after 4 rounds, one period"));
  EXPECT_THAT(out, MatchesRegex("(.|\n)*symmetric +yes\n +doubly stochastic +yes\n(.|\n)*"));
  EXPECT_THAT(out, MatchesRegex("(.|\n)*spectral gap +1 (.|\n)*"));
}

TEST_F(Gossip, CutsWhatIsLargeAndSaysSo) {
  const auto out = shown({"topology", "exp", "--workers", "65536"});
  EXPECT_THAT(out, HasSubstr("more groups"));
  EXPECT_THAT(out, HasSubstr("--all prints them whole"));
  EXPECT_THAT(out, HasSubstr("after 16 rounds, one period"));
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120);
  const auto small = shown({"topology", "ring", "--workers", "8"});
  EXPECT_THAT(small, Not(HasSubstr("--all")));
  EXPECT_THAT(small, HasSubstr("not within 14 rounds"));
  EXPECT_THAT(shown({"topology", "ring", "--workers", "200", "--all"}), HasSubstr("{197 198}"));
}

TEST_F(Gossip, TakesRoundsFromAFile) {
  const auto result =
      with_file("name = \"pairs\"\nrounds = [\n  [[3, 2], [1, 0]],\n  [[0, 2], [1, 3]],\n]\n");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("pairs: 4 workers, a period of 2 rounds"));
  EXPECT_THAT(result.out, HasSubstr("round 0  {0 1} {2 3}\n"));
  EXPECT_THAT(result.out, HasSubstr("after 2 rounds, one period"));
  const auto predicted = shown({"simulate", "--workers", "4", "--topology", "mine.toml", "--steps", "4"});
  EXPECT_THAT(predicted, HasSubstr("gossip, pairs"));
  EXPECT_THAT(shown({"topology", "file:mine.toml"}), HasSubstr("pairs: 4 workers")) << "as a config names it";
}

TEST_F(Gossip, MistakesInAFileHaveTheirPlace) {
  expect_user_error(with_file("rounds = [[[0, 1]], [[0], [2]]]\n"),
                    "mine.toml:1:11:", "in round 0 worker 2 is in none");
  expect_user_error(with_file("rounds = [\n  [[0, 1], [1]],\n]\n"),
                    "mine.toml:2:3:", "in round 0 worker 1 is in more than one");
  expect_user_error(with_file("rounds = [[[0, \"one\"]]]\n"), "mine.toml:1:16:", "a worker is a number");
  expect_user_error(with_file("rounds = [[[0, -1]]]\n"), "mine.toml:1:16:", "from 0 on");
  expect_user_error(with_file("rounds = [[0, 1]]\n"), "mine.toml:1:12:", "a group is an array");
  expect_user_error(with_file("rounds = []\n"), "mine.toml:1:10:", "empty");
  expect_user_error(with_file("rounds = [\n"), "mine.toml:", "this is not TOML");
  expect_user_error(with_file("name = \"x\"\n"), "there are no rounds");
  expect_user_error(with_file("steps = 3\n"), "'steps' is not a key of a topology");
  expect_user_error(with_file("rounds = [[[0, 1]]]\n", {"--workers", "4"}),
                    "a topology of 2 workers, not of 4");
  expect_user_error(gossip({"topology", "nowhere.toml"}), "cannot read the topology nowhere.toml");
}

TEST_F(Gossip, RefusesWhatHasNoMeaning) {
  expect_user_error(gossip({}), "shoal gossip topology");
  expect_user_error(gossip({"topology", "ring"}), "--workers");
  expect_user_error(gossip({"topology", "ring", "--workers", "5"}), "4 or 6 workers would do");
  expect_user_error(gossip({"topology", "rign", "--workers", "4"}), "did you mean ring?");
  expect_user_error(gossip({"topology", "alternating-exp-ring", "--workers", "7"}), "on a node");
  expect_user_error(gossip({"topology", "exp", "--workers", "8", "--local-size", "2147483647"}),
                    "--local-size", "at most 1048576");
  const auto simulate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"simulate", "--workers", "4", "--topology", "exp"});
    return gossip(more);
  };
  expect_user_error(simulate({"--step-ms", "gauss(1, 2)"}), "--step-ms", "'gauss' is not a distribution");
  expect_user_error(simulate({"--link", "1gbit"}), "--link", "BANDWIDTH,DELAY");
  expect_user_error(simulate({"--link", "1gbyte,1ms"}), "--link", "kbit, mbit, gbit");
  expect_user_error(simulate({"--link", "0mbit,1ms"}), "bandwidth of 0");
  expect_user_error(simulate({"--step-ms", "lognormal(1, 1e9)"}), "too large");
  expect_user_error(simulate({"--model", "gpt5"}), "--model gpt5");
  expect_user_error(simulate({"--clip", "never"}), "--clip");
  expect_user_error(simulate({"--overlap", "2"}), "--interval");
  expect_user_error(simulate({"--interval", "4", "--fragments", "5"}), "--fragments 5");
  expect_user_error(simulate({"--interval", "4", "--fragments", "2", "--overlap", "3"}), "--overlap 3",
                    "2 steps");
  expect_user_error(simulate({"--interval", "4", "--compress", "zip"}), "--compress 'zip'", "topk:SHARE");
  expect_user_error(simulate({"--interval", "4", "--clip", "bucket"}), "--clip bucket");
  expect_user_error(simulate({"--interval", "40", "--steps", "30"}), "--steps 30");
}

TEST_F(Gossip, PredictsBesideTheOthers) {
  // 1e7 bytes at 1 Gbit/s take a little over 80 ms: hidden for gossip with one partner, not for an all-reduce
  // after the backward pass.
  const auto out = shown({"simulate", "--workers", "8", "--topology", "exp", "--step-ms", "100", "--link",
                          "1gbit,0", "--bytes", "1e7", "--bucket-mib", "100"});
  EXPECT_EQ(row(out, "gossip, exp"), std::pair(std::string("100 ms"), 0.0));
  // 2 * 7 / 8 * 80 ms more, of packets of 1526 bytes with 1448 of data.
  EXPECT_EQ(row(out, "all-reduce, ring").first, "247.5 ms");
  EXPECT_EQ(row(out, "all-reduce, direct").first, "247.5 ms");
  EXPECT_EQ(row(out, "ZeRO 1, ring").first, "247.5 ms");
  EXPECT_THAT(out, HasSubstr("2.48 x as fast"));
  EXPECT_THAT(out, HasSubstr("a thousandth after 3 steps, 300 ms"));
}

// 1e7 bytes among four take 1.5 times 80 ms and its packets' headers, once in 30 steps.
TEST_F(Gossip, PredictsAnOuterOptimizer) {
  const auto out = shown({"simulate", "--workers", "4", "--topology", "complete", "--step-ms", "100",
                          "--link", "1gbit,0", "--bytes", "1e7", "--interval", "30"});
  EXPECT_THAT(out, HasSubstr("outer, complete       104.2 ms"));
  EXPECT_THAT(out, HasSubstr("outer is"));
  EXPECT_THAT(out, Not(HasSubstr("consensus")));
}

TEST_F(Gossip, PrintsJsonForScripts) {
  const auto out = shown({"simulate", "--workers", "2", "--topology", "ring", "--json"});
  EXPECT_THAT(out, testing::StartsWith("{\n"));
  for (const auto* key :
       {"\"step_ms\": ", "\"idle\": ", "\"name\": \"ZeRO 1, ring\"", "\"steps_to_thousandth\": 1"}) {
    EXPECT_THAT(out, HasSubstr(key));
  }
}

TEST_F(Gossip, PredictsTheSameForASeed) {
  const auto predict = [&](const char* seed) {
    auto out = shown({"simulate", "--workers", "64", "--topology", "alternating-exp-ring", "--step-ms",
                      "each(normal(100, 5)) + exp(10)", "--link", "lognormal(1gbit, 0.3), 1ms + exp(1ms)",
                      "--clip", "bucket", "--seed", seed, "--steps", "20"});
    return out.substr(0, out.find("steps simulated"));  // the time that it took follows
  };
  EXPECT_EQ(predict("1"), predict("1"));
  EXPECT_NE(predict("1"), predict("2"));
}

TEST_F(Gossip, TensOfThousandsOfWorkers) {
  const auto out =
      shown({"simulate", "--workers", "65536", "--topology", "alternating-exp-ring", "--step-ms",
             "lognormal(1s, 0.1)", "--link", "each(lognormal(1gbit, 0.5)), 20ms", "--steps", "10"});
  EXPECT_THAT(out, HasSubstr("65,536 workers on 8,192 nodes of 8"));
  EXPECT_GT(row(out, "all-reduce, ring").second, row(out, "gossip, alternating-exp-ring").second);
}

}  // namespace
}  // namespace shoal::test
