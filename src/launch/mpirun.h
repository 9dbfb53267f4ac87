// The mpirun of this machine and how it is called.
#pragma once

#include <string>
#include <vector>

#include "launch/hosts.h"

namespace shoal {

enum class MpiKind { open_mpi, hydra };  // hydra: MPICH and what descends from it

struct Mpirun {
  std::string path;
  MpiKind kind = MpiKind::open_mpi;
};

// The named one, or else the first of the usual names in PATH that this program can work with. Throws
// UserError that says how to install MPI, or to use threads, when there is none.
Mpirun find_mpirun(const std::string& wanted);

struct MpirunCall {
  std::vector<std::string> arguments, environment;
  int stop_signal = 0;  // what it passes on to the ranks and leaves the rest to them
};
// `ranks` of `program` with these arguments. No hosts: this machine, or what the batch system gave us.
MpirunCall mpirun_call(const Mpirun& mpirun, int ranks, const std::vector<Host>& hosts,
                       const std::string& remote_shell, const std::vector<std::string>& program);

}  // namespace shoal
