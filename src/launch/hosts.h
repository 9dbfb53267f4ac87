// The hosts of `shoal launch`, and a check that they can be used.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"

namespace shoal {

class ChildProcess;

struct Host {
  std::string name;
  int slots = 1;  // maximum number of ranks
  bool operator==(const Host&) const = default;
};

// Parses "a:2,b:2"; "a" means "a:1". Throws UserError for invalid or repeated hosts.
std::vector<Host> parse_hosts(const std::string& text);
// Reads a file with one host per line; '#' starts a comment. Throws UserError with the file and the line for
// invalid or repeated hosts, and where the file cannot be read or names none.
std::vector<Host> read_hosts(const std::filesystem::path& file);
// "a:2,b:2", as mpirun takes it.
std::string to_string(const std::vector<Host>& hosts);
int total_slots(const std::vector<Host>& hosts);
// The smallest number of ranks on a host when `ranks` ranks fill the hosts in order; 0 without hosts.
int fewest_on_a_host(const std::vector<Host>& hosts, int ranks);

// The hosts that `ranks` ranks fill in order, each with the number of its ranks.
std::vector<Host> filled_hosts(const std::vector<Host>& hosts, int ranks);

// A check of one host through the remote shell: whether the current folder and the program exist there. This
// machine always passes.
class HostCheck {
 public:
  HostCheck(std::string host, const std::string& remote_shell, std::string program);
  ~HostCheck();
  HostCheck(HostCheck&&) noexcept;
  HostCheck& operator=(HostCheck&&) noexcept;

  const std::string& host() const { return host_; }
  // Why the host cannot be used, "does not answer (...)", or "" where it can. Waits at most so long; nullopt:
  // not known yet. A host that has not answered kLimit seconds after the start does not answer.
  std::optional<std::string> objection(double seconds);

  static constexpr double kLimit = 8;
  // How many checks run at the same time: each has three open files and a process.
  static constexpr std::size_t kMost = 64;

 private:
  void start();

  std::string host_, program_, said_;
  std::vector<std::string> command_;     // empty: this machine
  std::unique_ptr<ChildProcess> child_;  // null: not started yet
  Stopwatch watch_;
};

// The objections to all hosts, which are checked HostCheck::kMost at a time.
std::vector<std::string> check_hosts(const std::vector<Host>& hosts, const std::string& remote_shell,
                                     const std::string& program);

}  // namespace shoal
