// What ranks write, freed of what mpirun adds when one of them fails: the user sees the program's own error
// last, and learns from us which rank died.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

// As mpirun tells it; what it does not tell is negative, 0 or empty.
struct RankDeath {
  int rank = -1;
  std::string host;
  int signal = 0;
  int code = 0;
};

// Takes one stream in pieces and returns what is to be shown of it. Everything that no line of mpirun's can
// begin with passes at once, the rest when its line is there.
class OutputFilter {
 public:
  std::string feed(std::string_view piece);
  std::string finish();

  const std::optional<RankDeath>& death() const { return death_; }
  bool saw_error() const { return saw_error_; }  // "shoal: error: ..." went by

 private:
  std::string line(const std::string& text);
  std::string end_block();

  std::string partial_;  // the start of a line that may be mpirun's
  std::string block_;    // of mpirun's, from its opening line on
  bool inside_line_ = false;
  std::string recent_;  // the end of what was shown
  std::optional<RankDeath> death_;
  bool saw_error_ = false;
};

}  // namespace shoal
