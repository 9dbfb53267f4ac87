// The output of ranks under mpirun, and the part of it that the filter shows: fed line by line and in other
// pieces. tests/cli/launch_test has whole messages of Open MPI and hydra.
#include "launch/output_filter.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace shoal::test {
namespace {

const std::string kDashes = std::string(74, '-') + "\n";
const std::string kEquals = std::string(83, '=') + "\n";
const std::string kKilled = kDashes +
                            "mpirun noticed that process rank 1 with PID 7 on node x exited on signal 9 "
                            "(Killed).\n" +
                            kDashes;

// All that is shown, of output in pieces of this size.
std::string shown_of(OutputFilter& filter, const std::string& output, std::size_t size) {
  std::string shown;
  for (std::size_t at = 0; at < output.size(); at += size) shown += filter.feed(output.substr(at, size));
  return shown + filter.finish();
}

TEST(OutputFilter, LinesOfDashesOfTheProgramHoldNothingBack) {
  OutputFilter filter;
  EXPECT_EQ(filter.feed("Title\n" + kDashes), "Title\n");
  EXPECT_EQ(filter.feed("text\n"), kDashes + "text\n");
  EXPECT_EQ(filter.feed("more\n"), "more\n");
  EXPECT_EQ(filter.feed(kEquals + "[11:19:22  INFO] step 1/2\n"), kEquals + "[11:19:22  INFO] step 1/2\n");
  EXPECT_EQ(filter.feed("| "), "| ");
  EXPECT_EQ(filter.feed(kDashes + "| "), "");
  EXPECT_EQ(filter.feed("a cell\n"), kDashes + "| a cell\n");
}

TEST(OutputFilter, PassesTheProgramsTextWhateverItsPieces) {
  const std::string output =
      kEquals + "a\n" + kDashes + kDashes + "\n  | " + kDashes + "b\n" + kKilled + "c\n" + kDashes + "end";
  const std::string kept = output.substr(0, output.find(kKilled)) + "c\n" + kDashes + "end";
  for (std::size_t size = 1; size <= output.size(); ++size) {
    OutputFilter filter;
    EXPECT_EQ(shown_of(filter, output, size), kept) << size;
    ASSERT_TRUE(filter.death()) << size;
    EXPECT_EQ(filter.death()->rank, 1);
    EXPECT_EQ(filter.death()->signal, SIGKILL);
  }
}

// The error stays the last line.
TEST(OutputFilter, LeavesOutWhatOpenMpiSaysOfALostRank) {
  OutputFilter filter;
  const std::string error = "shoal: error: rank 1 did not come\n";
  EXPECT_EQ(shown_of(filter, error + "[vm:04985] Read -1, expected 102400, errno = 3\n", 7), error);
}

// mpirun's frame begins a message there: it does not end one that the program's line seemed to begin.
TEST(OutputFilter, ReadsADeathBehindTheProgramsDashes) {
  for (const std::string& before : {kDashes, kDashes + "a cell\n", "half " + kDashes + kDashes}) {
    OutputFilter filter;
    EXPECT_EQ(shown_of(filter, before + kKilled, 100), before);
    ASSERT_TRUE(filter.death());
    EXPECT_EQ(filter.death()->rank, 1);
  }
}

// hydra adds 128 to the signal of a rank that dumped its core.
TEST(OutputFilter, ReadsTheSignalOfACoreDump) {
  for (const int code : {SIGSEGV, SIGSEGV + 128}) {
    OutputFilter filter;
    const std::string output = kEquals +
                               "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
                               "=   PID 7 RUNNING AT x\n=   EXIT CODE: " +
                               std::to_string(code) + "\n" + kEquals;
    EXPECT_EQ(shown_of(filter, output, output.size()), "");
    ASSERT_TRUE(filter.death());
    EXPECT_EQ(filter.death()->signal, SIGSEGV);
  }
}

TEST(OutputFilter, SeesErrorsBehindDashes) {
  for (const std::string& output : {kDashes + "shoal: error: no data\n", kDashes + "shoal: error: no data"}) {
    OutputFilter filter;
    EXPECT_EQ(shown_of(filter, output, output.size()), output);
    EXPECT_TRUE(filter.saw_error());
  }
}

// A message that does not end is the program's text, if it is long, or cut off.
TEST(OutputFilter, ShowsAMessageThatDoesNotEnd) {
  std::string output = kKilled.substr(0, kKilled.size() - kDashes.size());
  OutputFilter cut;
  EXPECT_EQ(shown_of(cut, output, output.size()), output);
  OutputFilter filter;
  for (int i = 0; i < 30; ++i) output += "a line\n";
  EXPECT_EQ(filter.feed(output + "shoal: error: no data\n"), output + "shoal: error: no data\n");
  EXPECT_TRUE(filter.saw_error());
  EXPECT_EQ(filter.finish(), "");
}

// std::regex would fill the stack with lines so long.
TEST(OutputFilter, PassesLongLinesThatBeginAsMpiruns) {
  const std::string letters(300'000, 'x');
  for (const std::string& output :
       {"[" + letters + "\n", "Abort(" + letters + "\n",
        kDashes + "mpirun noticed that process rank 1 with PID 7 on node " + letters + "\n" + kDashes}) {
    for (const std::size_t piece : {output.size(), std::size_t{5000}}) {
      OutputFilter filter;
      EXPECT_EQ(shown_of(filter, output, piece), output);
      EXPECT_FALSE(filter.death());
    }
  }
  OutputFilter filter;
  EXPECT_EQ(filter.feed("[" + letters), "[" + letters) << "held back, although it is no line of mpirun's";
}

}  // namespace
}  // namespace shoal::test
