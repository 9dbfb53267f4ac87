// tests/cli/transcripts holds command lines, each with all that it printed. Where the
// output depends on the machine or the time, "?" takes its place. After a change that is meant,
// SHOAL_WRITE_TRANSCRIPTS=1 writes the files anew; read the difference then.
#include <regex>
#include <sstream>

#include "cli/run.h"

namespace shoal::test {
namespace {

const fs::path kTranscripts = SHOAL_SOURCE_DIR "/tests/cli/transcripts";
constexpr std::string_view kPrompt = "$ shoal ";

std::vector<std::string> transcripts() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kTranscripts)) names.push_back(entry.path().stem());
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

std::string without_the_machine(std::string text) {
  using Rule = std::pair<std::regex, const char*>;
  static const std::vector<Rule> rules = {
      {std::regex("of [0-9.]+ [KMG]iB available(: it does not fit)?"), "of ? available"},
      {std::regex("in [0-9.]+ ms, all but"), "in ? ms, all but"}};
  for (const auto& [found, instead] : rules) text = std::regex_replace(text, found, instead);
  return text;
}

class Transcripts : public testing::TestWithParam<std::string> {
 protected:
  Transcripts() {
    fs::create_directory_symlink(SHOAL_SOURCE_DIR "/configs", folder_ / "configs");
    const auto prepared =
        run({"prepare", "synthetic", "--size", "20000", "--out", "data/synthetic"}, folder_.path());
    EXPECT_EQ(prepared.code, 0) << prepared.err;
  }
  std::string printed_by(const std::string& command) const {
    const auto result = run(words_of(command), folder_.path(), {"SHOAL_ISA=x86-64-v2"});
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return without_the_machine(result.out);
  }

  TempDir folder_;
};

TEST_P(Transcripts, AreWhatCommandsPrint) {
  const auto file = kTranscripts / (GetParam() + ".txt");
  std::string found;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kPrompt)) continue;
    found += (found.empty() ? "" : "\n") + line + "\n" + printed_by(line.substr(kPrompt.size()));
  }
  if (std::getenv("SHOAL_WRITE_TRANSCRIPTS")) write_file(file, found);
  EXPECT_EQ(found, read_file(file));
}

INSTANTIATE_TEST_SUITE_P(, Transcripts, testing::ValuesIn(transcripts()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace shoal::test
