#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Command, NoArgumentsShowsTheHelpAndIsAMistake) {
  const auto result = run({});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("Usage: shoal"));
}

TEST(Command, VersionAndHelpGoToStandardOutput) {
  EXPECT_THAT(run({"--version"}).out, StartsWith("shoal "));
  const auto help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_THAT(help.out, HasSubstr("Commands:"));
}

// The commands as the program lists them, so that a new one is tested without being named here.
std::vector<std::string> commands() {
  std::istringstream help(run({"--help"}).out);
  std::vector<std::string> names;
  std::string line;
  while (std::getline(help, line) && line != "Commands:") {
  }
  while (std::getline(help, line) && !line.empty()) names.push_back(line.substr(2, line.find(' ', 2) - 2));
  return names;
}

TEST(Command, EveryCommandHasHelpWithTwoExamples) {
  ASSERT_THAT(commands(), testing::Contains("config"));
  for (const auto& command : commands()) {
    const auto help = run({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Usage: shoal " + command));
    const auto examples = help.out.substr(std::min(help.out.find("Examples:"), help.out.size()));
    std::size_t count = 0;
    for (auto at = examples.find("\n  shoal "); at != std::string::npos;
         at = examples.find("\n  shoal ", at + 1)) {
      ++count;
    }
    EXPECT_GE(count, 2u) << help.out;
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
  }
}

TEST(Command, MistypedNamesGetASuggestion) {
  expect_user_error(run({"confg"}), "unknown command 'confg'", "did you mean config?", "shoal --help");
  expect_user_error(run({"config", "--explan"}), "unknown option '--explan'", "--explain",
                    "shoal config --help");
  expect_user_error(run({"qqqqqqq"}), "unknown command 'qqqqqqq'", "known: ");
}

TEST(Command, MissingArgumentsAreNamed) {
  expect_user_error(run({"plot"}), "RUN is required");
  expect_user_error(run({"plot", "x"}), "--output is required");
}

}  // namespace
}  // namespace shoal::test
