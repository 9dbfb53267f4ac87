// The program on a terminal: the contents of the screen.
#include <pty.h>

#include <thread>

#include "cli/tiny_runs.h"
#include "core/terminal.h"

namespace shoal::test {
namespace {

// The rows of a terminal after `output`; emulates only the escape codes that the program uses.
std::vector<std::string> screen(const std::string& output, std::size_t columns) {
  std::vector<std::string> rows(1);
  std::size_t row = 0, column = 0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    if (output.compare(i, 2, "\033[") == 0) {
      const auto end = output.find_first_of("ABCDHJKm", i);
      if (output[end] == 'K') rows[row].resize(std::min(column, rows[row].size()));
      if (output[end] == 'J') rows.resize(row + 1), rows[row].resize(std::min(column, rows[row].size()));
      if (output[end] == 'A') row -= std::stoul(output.substr(i + 2));
      i = end;
      continue;
    }
    const char c = output[i];
    if (c == '\r') column = 0;
    if (c == '\n' || (c >= ' ' && column == columns)) column = 0, ++row;
    if (row == rows.size()) rows.emplace_back();
    if (c < ' ') continue;
    rows[row].resize(std::max(rows[row].size(), column + 1), ' ');
    rows[row][column++] = c;
  }
  return rows;
}

class OnATerminal : public TinyRuns {
 protected:
  // The whole standard error of a training run.
  std::string train_on_terminal(int columns, const Settings& settings) const {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns), size.ws_row = 24;
    int terminal = -1;
    const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (pid == 0) {
      auto arguments = train_command(settings);
      std::vector<char*> argv = {const_cast<char*>("shoal")};
      for (auto& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::setenv("TERM", "xterm", 1);
      if (::chdir(folder_.path().c_str()) == 0) ::execv(SHOAL_BINARY, argv.data());
      ::_exit(127);
    }
    std::string output;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof buffer)) > 0;)
      output.append(buffer, static_cast<std::size_t>(n));
    int status = 0;
    ::waitpid(pid, &status, 0);
    ::close(terminal);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << output;
    return output;
  }
};

TEST_F(OnATerminal, TheBarFitsAndLeavesNothingBehind) {
  for (const int columns : {80, 60, 20}) {
    const auto output = train_on_terminal(
        columns, {"run.name=at-" + std::to_string(columns), "log.interval=5", "eval.interval=0"});
    int bars = 0;
    for (std::size_t at = 0; (at = output.find(" %  step ", at)) != std::string::npos; ++at) {
      const auto begin = output.find_last_of("\r\nKJ", at), end = output.find_first_of("\r\n\033", at);
      EXPECT_LT(display_width(output.substr(begin + 1, end - begin - 1)), columns);
      ++bars;
    }
    EXPECT_GT(bars, 0) << output;
    for (const auto& row : screen(output, static_cast<std::size_t>(columns)))
      EXPECT_THAT(row, testing::Not(testing::HasSubstr(" %  step "))) << output;
  }
}

}  // namespace
}  // namespace shoal::test
