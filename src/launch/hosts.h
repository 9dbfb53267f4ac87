// The hosts that `shoal launch` may use, and whether they answer.
#pragma once

#include <string>
#include <vector>

namespace shoal {

struct Host {
  std::string name;
  int slots = 1;  // ranks that it has room for
};

// "a:2,b:2", "a" for "a:1". Throws UserError for what is none or is named twice.
std::vector<Host> parse_hosts(const std::string& text);
// As mpirun takes them.
std::string to_string(const std::vector<Host>& hosts);
int total_slots(const std::vector<Host>& hosts);
// The fewest that a host has of so many ranks, which take its slots in order; 0 where there are no hosts.
int fewest_on_a_host(const std::vector<Host>& hosts, int ranks);

// What stands against using a host, by host in their order, e.g. "does not answer (...)"; "" where nothing
// does. Each is asked through the remote shell, all at once, whether it has this folder and the program. This
// machine always does.
std::vector<std::string> check_hosts(const std::vector<Host>& hosts, const std::string& remote_shell,
                                     const std::string& program, double seconds = 8);

}  // namespace shoal
