#include "launch/output_filter.h"

#include <algorithm>
#include <regex>
#include <utility>

namespace shoal {
namespace {

// Open MPI and MPICH's hydra put messages between lines of one repeated character (74 '-', 83 '='), which
// programs print too. Returns the position of such a line's first character: not 0 where a rank died in the
// middle of a line. npos where there is none.
std::size_t frame_in(std::string_view line) {
  constexpr std::size_t kShortest = 70;
  if (line.empty() || (line.back() != '-' && line.back() != '=')) return std::string_view::npos;
  const auto before = line.find_last_not_of(line.back());
  const auto start = before == std::string_view::npos ? 0 : before + 1;
  return line.size() - start >= kShortest ? start : std::string_view::npos;
}

// Longer lines and messages are the program's: std::regex recurses for each character, until the stack is
// full.
constexpr std::size_t kLongestLine = 1000, kLongestMessage = 4000;

bool may_become_mpiruns(std::string_view start) {
  static const std::string_view firsts = "-=[mYTPAa";  // first characters of frames and of the lines below
  return start.size() <= kLongestLine && firsts.find(start[0]) != std::string_view::npos;
}

// Lines that mpirun, or Open MPI in a rank that loses another, writes outside frames. The last three follow
// hydra's frame.
bool is_noise(const std::string& line) {
  static const std::regex noise(
      R"(mpi(run|exec)\S*: Forwarding signal \d+ to job)"
      R"(|\[[^\]]+\] (\d+ more process(es)? ha(s|ve) sent help message.*|Set MCA parameter "orte_base_help.*))"
      R"(|\[[^\]]+:\d+\] Read -1, expected \d+, errno = \d+)"
      R"(|application called MPI_Abort\(.*|Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\).*)"
      R"(|YOUR APPLICATION TERMINATED WITH THE EXIT STRING.*)"
      R"(|This typically refers to a problem with your application\.)"
      R"(|Please see the FAQ page for debugging suggestions)");
  return line.size() <= kLongestLine && std::regex_match(line, noise);
}

// Whether a message of mpirun's about a failed rank begins with this line.
bool begins_a_message(const std::string& line) {
  static constexpr std::string_view kSigns[] = {"Primary job  terminated normally, but",
                                                "processes exited with non-zero status",
                                                "noticed that process rank",
                                                "MPI_ABORT was invoked on rank",
                                                "BAD TERMINATION OF ONE OF YOUR",
                                                "lost communication with a remote daemon"};
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](std::string_view sign) { return line.find(sign) != std::string::npos; });
}

std::optional<RankDeath> death_in(const std::string& text) {
  static const std::regex killed(R"(process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+))");
  static const std::regex ended(R"(Process name: \[(?:\[\d+,\d+\]|\S+@\d+),(\d+)\]\s+Exit code:\s+(\d+))");
  static const std::regex hydra(R"(PID \d+ RUNNING AT (\S+)\s+=\s+EXIT CODE: (\d+))");
  static const std::regex lost(R"(Remote daemon\s*: \[\S+\] on node (\S+))");
  std::smatch found;
  if (std::regex_search(text, found, killed))
    return RankDeath{.rank = std::stoi(found[1]), .host = found[2], .signal = std::stoi(found[3])};
  if (std::regex_search(text, found, ended))
    return RankDeath{.rank = std::stoi(found[1]), .host = "", .code = std::stoi(found[2])};
  // hydra prints the wait status as an exit code: the number of a signal, and 128 more after a core dump.
  if (std::regex_search(text, found, hydra))
    return RankDeath{.host = found[1], .signal = std::stoi(found[2]) & 0x7f};
  if (std::regex_search(text, found, lost)) return RankDeath{.host = found[1]};
  return std::nullopt;
}

}  // namespace

std::string OutputFilter::feed(std::string_view piece) {
  std::string shown;
  partial_ += piece;
  for (std::size_t end; (end = partial_.find('\n')) != std::string::npos; partial_.erase(0, end + 1)) {
    shown += line(partial_.substr(0, end), std::exchange(inside_line_, false));
  }
  const bool waits = !opening_.empty() || !block_.empty();
  if (!partial_.empty() && !waits && (inside_line_ || !may_become_mpiruns(partial_))) {
    shown += std::exchange(partial_, {});
    inside_line_ = true;
  }
  look_for_error(shown);
  return shown;
}

std::string OutputFilter::finish() {
  auto rest = std::exchange(opening_, {}) + std::exchange(block_, {}) + std::exchange(partial_, {});
  look_for_error(rest);
  return rest;
}

std::string OutputFilter::line(const std::string& text, bool goes_on) {
  if (!block_.empty()) return line_of_block(text);
  std::string shown;
  if (!opening_.empty()) {
    auto opening = std::exchange(opening_, {});
    if (begins_a_message(text)) {
      const auto frame = frame_in(std::string_view(opening).substr(0, opening.size() - 1));
      block_ = opening.substr(frame) + text + "\n";
      return opening_goes_on_ || frame > 0 ? opening.substr(0, frame) + "\n" : "";
    }
    shown = std::move(opening);
  }
  if (frame_in(text) != std::string_view::npos) {
    opening_ = text + "\n";
    opening_goes_on_ = goes_on;
  } else if (goes_on || !is_noise(text)) {
    shown += text + "\n";
  }
  return shown;
}

std::string OutputFilter::line_of_block(const std::string& text) {
  constexpr int kMostLines = 20;  // mpirun's longest message has 11, with its frames
  block_ += text + "\n";
  const auto frame = frame_in(text);
  const bool closes = frame != std::string_view::npos;
  const bool too_long = block_.size() > kLongestMessage;
  if (!closes && !too_long && std::ranges::count(block_, '\n') < kMostLines) return "";
  const auto block = std::exchange(block_, {});
  if (too_long) return block;
  if (!death_) death_ = death_in(block);
  if (!closes) return block;
  return frame > 0 ? text.substr(0, frame) + "\n" : "";
}

void OutputFilter::look_for_error(const std::string& shown) {
  constexpr std::string_view kError = "shoal: error: ";
  recent_ += shown;
  saw_error_ |= recent_.find(kError) != std::string::npos;
  recent_.erase(0, recent_.size() - std::min(recent_.size(), kError.size()));
}

}  // namespace shoal
