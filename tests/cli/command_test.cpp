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

// The commands that the program lists, so that new ones are tested automatically.
std::vector<std::string> commands() {
  std::istringstream help(run({"--help"}).out);
  std::vector<std::string> names;
  std::string line;
  while (std::getline(help, line) && line != "Commands:") {
  }
  while (std::getline(help, line) && !line.empty()) {
    if (line[2] != ' ')
      names.push_back(line.substr(2, line.find(' ', 2) - 2));  // not a description's second line
  }
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

TEST(Command, APathThatCannotBeFollowedIsAUsersError) {
  TempDir dir;
  fs::create_symlink("loop", dir / "loop");
  const std::string reason = "loop: Too many levels of symbolic links";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"plot", "loop", "-o", "x.svg"},
        {"report", "loop", "-o", "x.html"},
        {"checkpoint", "list", "loop"},
        {"checkpoint", "verify", "loop"},
        {"export", "--checkpoint", "none", "--out", "loop"},
        {"prepare", "synthetic", "--out", "loop"},
        {"sample", "--checkpoint", "none", "--prompt-file", "loop"}})
    expect_user_error(run(command, dir.path()), reason);
  expect_user_error(run({"plot", std::string(300, 'x'), "-o", "x.svg"}, dir.path()), "File name too long");
}

TEST(Command, TheConfigComesFirst) {
  expect_user_error(run({"train", "--optim.lr=1e-3", "a.toml"}), "'optim.lr=1e-3' is a setting",
                    "the config comes first");
}

TEST(Command, ValuesStayAsTheyAre) {
  expect_user_error(run({"prepare", "text", "[x,y]", "--out", "none"}), "[x,y]: ");
  expect_user_error(run({"launch", "-n", "2", "--", "train", "[a,b]"}), "cannot read the config [a,b]");
  expect_user_error(run({"[a,b]"}), "unknown command '[a,b]'");
  expect_user_error(run({"config", "--expl]"}), "unknown option '--expl]'");
  expect_user_error(run({"sample", "--checkpoint", "--a.b=c"}), "no checkpoint at --a.b=c");
  expect_user_error(run({"config", "--dump", "--a.b=[c]"}), "--a.b=[c]");
}

TEST(Command, HelpIsACommandToo) {
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help", "train"}).out, run({"train", "--help"}).out);
  EXPECT_EQ(run({"help", "checkpoint", "list"}).out, run({"checkpoint", "list", "--help"}).out);
  EXPECT_EQ(run({"help"}).code, 0);
  expect_user_error(run({"help", "bogus"}), "unknown command 'bogus'", "known: ");
  expect_user_error(run({"trian", "--help"}), "did you mean train?");
}

TEST(Command, TheCommandThatWasMeantIsShown) {
  expect_user_error(run({"configs/quickstart.toml"}), "write: shoal train configs/quickstart.toml");
  expect_user_error(run({"sample", "runs/a", "Once upon"}), "unexpected argument 'runs/a'",
                    "write: shoal sample --checkpoint runs/a --prompt 'Once upon'");
  expect_user_error(run({"sample", "--checkpoint", "runs/a", "Once"}),
                    "write: shoal sample --checkpoint runs/a --prompt Once");
  expect_user_error(run({"sample", "--checkpoint", "my runs/a", "It's $5"}),
                    "write: shoal sample --checkpoint 'my runs/a' --prompt 'It'\\''s $5'");
  expect_user_error(run({"sample"}),
                    "--checkpoint is required, e.g. shoal sample --checkpoint runs/quickstart");
  expect_user_error(run({"eval", "runs/a"}), "write: shoal eval --checkpoint runs/a");
  expect_user_error(run({"sample", "--temp", "1"}), "did you mean --temperature?");
}

TEST(Command, IntegersAreCheckedInOneWay) {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& takes) {
    const auto& value = arguments.back();
    expect_user_error(run(arguments), arguments[arguments.size() - 2],
                      "'" + value + "' is not allowed; it takes an integer, at least " + takes + " (see");
  };
  for (const auto* value : {"0", "-1", "two", "1.5", ""})
    refused({"train", "x", "--ranks", value}, "1, or all");
  refused({"train", "x", "--ranks", "99999999999"}, "1 and at most 2147483647, or all");
  refused({"train", "x", "--ranks", "99999999999999999999"}, "1, or all");
  refused({"train", "x", "--trace", "t", "--trace-steps", "0"}, "1");
  refused({"eval", "--checkpoint", "x", "--batches", "-1"}, "0 and at most 1099511627776");
  refused({"sample", "--checkpoint", "x", "--samples", "0"}, "1");
  refused({"sample", "--checkpoint", "x", "--max-tokens", "many"}, "0");
  refused({"sample", "--checkpoint", "x", "--top-k", "-2"}, "0");
  refused({"sample", "--checkpoint", "x", "--seed", "-2"}, "0");
  refused({"sample", "--checkpoint", "x", "--threads", "x"}, "0");
  refused({"schedule", "x", "--micro-batches", "0"}, "1 and at most 65536");
  refused({"prepare", "text", "--size", "1"}, "1000 and at most 1099511627776");
  refused({"trace", "x", "--step", "0"}, "1");
  refused({"launch", "--max-restarts", "-1"}, "0 and at most 1000000");
  refused({"gossip", "simulate", "--steps", "1"}, "2 and at most 1048576");
}

TEST(Command, NumbersAndWordsAreCheckedInOneWay) {
  expect_user_error(run({"sample", "--temperature", "warm"}),
                    "--temperature: 'warm' is not allowed; it takes a number, at least 0 (see");
  expect_user_error(run({"sample", "--top-p", "0"}), "'0'", "a number, above 0 and at most 1");
  expect_user_error(run({"sample", "--top-p", "nan"}), "'nan'", "a number, above 0 and at most 1");
  expect_user_error(run({"gossip", "simulate", "--bytes", "-1"}), "'-1'", "a number, above 0");
  expect_user_error(run({"export", "--dtype", "float23"}),
                    "it takes float32, bfloat16, float16; did you mean float32?");
}

TEST(Command, MissingArgumentsAreNamed) {
  expect_user_error(run({"plot"}), "RUN is required, e.g. shoal plot runs/quickstart -o quickstart.svg");
  expect_user_error(run({"plot", "x"}), "--output is required, e.g. ");
  expect_user_error(run({"train"}), "CONFIG is required, e.g. shoal train configs/quickstart.toml");
  expect_user_error(run({"train", "x", "--ranks"}), "--ranks needs a value: N | all (see");
  expect_user_error(run({"plot", "x", "-o"}), "--output needs a value: FILE.svg (see");
  expect_user_error(run({"checkpoint", "inspect"}), "e.g. shoal checkpoint inspect runs/quickstart");
  expect_user_error(run({"export", "runs/a"}), "unexpected argument 'runs/a'; --checkpoint is required");
}

}  // namespace
}  // namespace shoal::test
