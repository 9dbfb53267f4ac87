// The manual and the completion of shells: every command and option of --help is in both.
#include <sstream>

#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using Words = std::vector<std::string>;

std::string without(std::string text, char removed) {
  std::erase(text, removed);
  return text;
}

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The names in the first column of one part of a help: commands or options.
Words names_in_help(const Words& command, const std::string& part) {
  auto arguments = command;
  arguments.push_back("--help");
  Words names;
  bool inside = false;
  for (const auto& line : lines_of(run(arguments).out)) {
    if (!line.starts_with(' ')) inside = line == part;
    if (!inside || !line.starts_with("  ") || line[2] == ' ') continue;
    std::istringstream column(line.substr(2, line.find(' ', 2) - 2));
    for (std::string name; std::getline(column, name, ',');) names.push_back(name);
  }
  return names;
}

// Every command of the help: {}, {"prepare"}, ..., {"checkpoint", "list"}, ...
std::vector<Words> all_commands(const Words& above = {}) {
  std::vector<Words> commands = {above};
  for (const auto& name : names_in_help(above, "Commands:")) {
    auto below = above;
    below.push_back(name);
    for (auto& command : all_commands(below)) commands.push_back(std::move(command));
  }
  return commands;
}

// The candidates for the last word.
Words completed(Words words) {
  words.insert(words.begin(), "__complete");
  Words candidates;
  for (const auto& line : lines_of(run(words).out)) candidates.push_back(line.substr(0, line.find('\t')));
  return candidates;
}

TEST(Pages, HaveEveryCommandAndOptionOfTheHelp) {
  const TempDir folder;
  ASSERT_EQ(run({"man", "--out", "man1"}, folder.path()).code, 0);
  const auto commands = all_commands();
  EXPECT_GT(commands.size(), 25u);
  for (const auto& command : commands) {
    const auto file = command.empty() ? "shoal.1" : "shoal-" + command.front() + ".1";
    const auto page = without(read_file(folder / "man1" / file), '\\');
    std::string name = "shoal";
    for (const auto& word : command) name += " " + word;
    EXPECT_THAT(page, HasSubstr(name + " [OPTIONS]")) << file;
    const auto options = names_in_help(command, "Options:");
    EXPECT_THAT(options, testing::Contains("--help"));
    for (const auto& option : options) EXPECT_THAT(page, HasSubstr("fB" + option + "fR")) << file;
    for (const auto& below : names_in_help(command, "Commands:")) EXPECT_THAT(page, HasSubstr(below)) << file;
  }
}

TEST(Pages, ArePrintedOneByOne) {
  const auto train = run({"man", "train"});
  EXPECT_THAT(train.out, HasSubstr("128+N"));
  EXPECT_EQ(train.code, 0);
  EXPECT_THAT(train.out, testing::StartsWith(".TH shoal\\-train 1"));
  EXPECT_EQ(run({"man"}).out, run({"man", "shoal"}).out);
  expect_user_error(run({"man", "trian"}), "there is no command 'trian'", "did you mean train?");
  expect_user_error(run({"man", "train", "--out", "x"}), "--out");
  expect_user_error(run({"man", "--out", "/proc/none"}), "/proc/none");
}

// groff's warnings: a page that it formats without any.
TEST(Pages, AreCleanRoff) {
  if (std::system("command -v man >/dev/null && command -v groff >/dev/null") != 0)
    GTEST_SKIP() << "this machine has no man with groff";
  const TempDir folder;
  ASSERT_EQ(run({"man", "--out", "man1"}, folder.path()).code, 0);
  const auto warnings = folder / "warnings";
  for (const auto& page : fs::directory_iterator(folder / "man1")) {
    const auto command = "man --warnings=w -E UTF-8 -l " + page.path().string() + " 2>" + warnings.string() +
                         " | cat >" + (folder / "text").string();
    EXPECT_EQ(std::system(command.c_str()), 0);
    EXPECT_EQ(read_file(warnings), "") << page;
    EXPECT_THAT(read_file(folder / "text"), HasSubstr("SYNOPSIS"));
  }
}

TEST(Completion, HasEveryCommandAndOptionOfTheHelp) {
  for (const auto& command : all_commands()) {
    const auto with = [&](const char* word) {
      auto words = command;
      words.push_back(word);
      return completed(words);
    };
    EXPECT_THAT(with("-"), IsSupersetOf(names_in_help(command, "Options:")))
        << testing::PrintToString(command);
    EXPECT_THAT(with(""), IsSupersetOf(names_in_help(command, "Commands:")))
        << testing::PrintToString(command);
  }
}

TEST(Completion, OffersValuesKeysAndFiles) {
  EXPECT_THAT(completed({"tr"}), ElementsAre("train", "trace"));
  EXPECT_THAT(completed({"help", "tr"}), ElementsAre("train", "trace"));
  EXPECT_THAT(completed({"man", "tr"}), ElementsAre("train", "trace"));
  EXPECT_THAT(completed({"help", "train", "optim.l"}), testing::IsEmpty());
  EXPECT_THAT(completed({"serve", "--host", ""}), testing::IsEmpty());
  EXPECT_THAT(completed({"eval", "--split", ""}), ElementsAre("val", "train", "test"));
  EXPECT_THAT(completed({"eval", "--split=t"}), ElementsAre("--split=train", "--split=test"));
  EXPECT_THAT(completed({"prepare", "wiki"}), ElementsAre("wikitext-2", "wikitext-103"));
  EXPECT_THAT(completed({"train", ""}), ElementsAre(":files"));
  EXPECT_THAT(completed({"train", "--ranks", ""}), ElementsAre("all"));
  EXPECT_THAT(completed({"sample", "--top-k", ""}), ElementsAre());
  EXPECT_THAT(completed({"plot", "runs/a", "-o", ""}), ElementsAre(":files"));
  EXPECT_THAT(completed({"train", "a.toml", "opt"}), ElementsAre("optim."));
  EXPECT_THAT(completed({"train", "a.toml", "optim.lr"}), ElementsAre("optim.lr="));
  EXPECT_THAT(completed({"train", "a.toml", "train.graph="}),
              ElementsAre("train.graph=true", "train.graph=false"));
  EXPECT_THAT(completed({"train", "a.toml", "run.deterministic="}),
              ElementsAre("run.deterministic=off", "run.deterministic=run", "run.deterministic=layout"));
  EXPECT_THAT(completed({"train", "a.toml", "data.dir="}), ElementsAre(":files"));
  EXPECT_THAT(completed({"train", "a.toml", "train.steps="}), ElementsAre());
  EXPECT_THAT(completed({"config", "--explain", "gossip"}), testing::Contains("gossip"));
  EXPECT_THAT(completed({"launch", "-n", "2", "--", "ev"}), ElementsAre("eval"));
  EXPECT_THAT(completed({"launch", "-n", "2", "--", "train", "a.toml", "gossip.topo"}),
              ElementsAre("gossip.topology="));
  EXPECT_THAT(run({"__complete", "train", "--ranks-"}).out, HasSubstr("\tWith --dry-run"));
  EXPECT_THAT(run({"--help"}).out, Not(HasSubstr("__complete")));
}

// The words that bash offers for a line, by the function of the script.
std::string bash_offers(const std::string& line, const fs::path& folder) {
  static const std::string kScript =
      "source <(shoal completion bash); COMP_LINE=$1 COMP_POINT=${#1}; _shoal; echo \"${COMPREPLY[*]}\"";
  const auto out = folder / "out";
  const auto command = "cd " + folder.string() + " && PATH=" + fs::path(SHOAL_BINARY).parent_path().string() +
                       ":$PATH bash -c '" + kScript + "' bash '" + line + "' >" + out.string();
  EXPECT_EQ(std::system(command.c_str()), 0) << line;
  auto text = read_file(out);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

TEST(Completion, WorksInBash) {
  const TempDir folder;
  write_file(folder / "mine.toml", "");
  const auto offers = [&](const std::string& line) { return bash_offers(line, folder.path()); };
  EXPECT_EQ(offers("shoal tr"), "train trace");
  EXPECT_EQ(offers("shoal checkpoint l"), "list");
  EXPECT_EQ(offers("shoal train m"), "mine.toml");
  EXPECT_EQ(offers("shoal train mine.toml --dry"), "--dry-run");
  // Behind = and :, which part words for bash, only the rest of the word.
  EXPECT_EQ(offers("shoal train mine.toml run.deterministic=l"), "layout");
  EXPECT_EQ(offers("shoal train mine.toml data.dir=mi"), "mine.toml");
  EXPECT_EQ(offers("shoal train mine.toml init.from=auto:n"), "nanogpt:");
  EXPECT_EQ(offers("shoal eval --split=v"), "val");
}

TEST(Completion, ScriptsAreForThreeShells) {
  EXPECT_THAT(run({"completion", "zsh"}).out, testing::StartsWith("#compdef shoal\n"));
  EXPECT_THAT(run({"completion", "fish"}).out, HasSubstr("complete -c shoal"));
  expect_user_error(run({"completion", "tcsh"}), "bash, zsh, fish");
  const TempDir folder;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    if (std::system(("command -v " + std::string(shell) + " >/dev/null").c_str()) != 0) continue;
    write_file(folder / "script", run({"completion", shell}).out);
    EXPECT_EQ(std::system((std::string(shell) + " -n " + (folder / "script").string()).c_str()), 0) << shell;
  }
}

}  // namespace
}  // namespace shoal::test
