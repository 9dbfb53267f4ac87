// The hosts of `shoal launch`, and a check that they can be used.
#pragma once

#include <string>
#include <vector>

namespace shoal {

struct Host {
  std::string name;
  int slots = 1;  // maximum number of ranks
};

// Parses "a:2,b:2"; "a" means "a:1". Throws UserError for invalid or repeated hosts.
std::vector<Host> parse_hosts(const std::string& text);
// "a:2,b:2", as mpirun takes it.
std::string to_string(const std::vector<Host>& hosts);
int total_slots(const std::vector<Host>& hosts);
// The smallest number of ranks on a host when `ranks` ranks fill the hosts in order; 0 without hosts.
int fewest_on_a_host(const std::vector<Host>& hosts, int ranks);

// Why a host cannot be used, for each host: "does not answer (...)", or "" where it can. Checks through the
// remote shell, on all hosts at the same time, that the current folder and the program exist there. This
// machine is not checked.
std::vector<std::string> check_hosts(const std::vector<Host>& hosts, const std::string& remote_shell,
                                     const std::string& program, double seconds = 8);

}  // namespace shoal
