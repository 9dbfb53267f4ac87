// Removes from the output of ranks the messages that mpirun adds when a rank fails, so that the program's own
// error is the last line. Reads from these messages which rank died.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

// The failed rank, as mpirun reports it; unknown fields are negative, 0 or empty.
struct RankDeath {
  int rank = -1;
  std::string host;
  int signal = 0;
  int code = 0;
};

// Takes one stream in pieces and returns the text to show. Text passes at once, unless it may begin a line of
// mpirun's; then it waits until the line is complete, and where that may frame a message, until the next one
// is.
class OutputFilter {
 public:
  std::string feed(std::string_view piece);
  std::string finish();

  const std::optional<RankDeath>& death() const { return death_; }
  bool saw_error() const { return saw_error_; }  // the stream had "shoal: error: ..."

 private:
  std::string line(const std::string& text, bool goes_on);  // `goes_on`: its beginning has been shown
  std::string line_of_block(const std::string& text);
  void look_for_error(const std::string& shown);

  std::string partial_;  // start of a line that may be mpirun's
  std::string opening_;  // a line, mpirun's frame or the program's own: the next one tells
  bool opening_goes_on_ = false;
  std::string block_;  // an open message of mpirun's, from its frame
  bool inside_line_ = false;
  std::string recent_;  // end of the shown text, to find an error across pieces
  std::optional<RankDeath> death_;
  bool saw_error_ = false;
};

}  // namespace shoal
