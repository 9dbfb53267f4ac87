// Finds mpirun on this machine, and makes its command line.
#pragma once

#include <string>
#include <vector>

#include "launch/hosts.h"

namespace shoal {

enum class MpiKind { open_mpi, hydra };  // hydra: MPICH and derived implementations

struct Mpirun {
  std::string path;
  MpiKind kind = MpiKind::open_mpi;
};

// The program `wanted`, or, if empty, the first of the usual names in PATH for which Shoal has a module.
// Throws UserError with instructions to install MPI, or to use threads, when there is none, and where one
// does not say its version within `limit` seconds.
Mpirun find_mpirun(const std::string& wanted, double limit = 10);

struct MpirunCall {
  std::vector<std::string> arguments, environment;
  int stop_signal = 0;  // a signal that mpirun only forwards to the ranks
};
// Starts `ranks` ranks of `program`, a command with its arguments. Without hosts: on this machine, or on the
// hosts that the batch system allocated.
MpirunCall mpirun_call(const Mpirun& mpirun, int ranks, const std::vector<Host>& hosts,
                       const std::string& remote_shell, const std::vector<std::string>& program);

}  // namespace shoal
