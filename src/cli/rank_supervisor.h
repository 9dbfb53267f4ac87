// MPI ranks of this program, started again when one dies, or when hosts come and go: what `shoal launch`
// does.
#pragma once

#include <string>
#include <vector>

namespace shoal::cli {

// The options of the command line; times are in seconds.
struct LaunchOptions {
  int ranks = 0;           // 0: the total of the hosts' ranks
  std::string hosts;       // empty: this machine, or the hosts of the batch system
  std::string hosts_file;  // lists them instead
  int max_restarts = 0;
  int min_ranks = 0;  // 0: see --help
  double max_wait = 600, watch = 10;
  std::string remote_shell = "ssh";
  std::string mpirun;
  std::vector<std::string> command;
};

// Runs the command until it ends or cannot go on. Returns the exit code of `shoal launch`; throws UserError
// where the options do not fit, Error where ranks failed without a message of their own.
int supervise_ranks(LaunchOptions options);

}  // namespace shoal::cli
