// How ranks come to be: as threads of this process, or as processes that mpirun or srun started.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"

namespace shoal {

// One rank's view of all ranks.
struct World {
  Communicator& ranks;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int cores = 1;      // this rank's share of the host's cores, one at least
  std::string where;  // "4 threads of this process", "16 ranks on 4 hosts (Open MPI 4.1.4)": for the log
};

struct WorldOptions {
  int ranks = 1;                  // of run_threads
  double deadline_seconds = 600;  // of every collective
};

using RankBody = std::function<void(World& world)>;

// Runs `body` on options.ranks threads of this process. When one throws, the others' collectives throw
// StoppedByPeer; when all have ended, the first failure is thrown again, with "rank R: " before its message
// where there are several ranks and it is not the same on all.
void run_threads(const WorldOptions& options, const RankBody& body);

// What started this process, as its environment says.
struct Launch {
  enum class Kind { alone, open_mpi, mpich };  // mpich: whatever speaks PMI or PMI-2, or MPICH's own mpirun
  Kind kind = Kind::alone;
  int rank = 0, ranks = 1;
  std::string by;  // "mpirun", "srun", ...
};
Launch detect_launch();

// Runs `body` as this process's rank of the MPI job that it was started in. When one rank throws, all ranks
// end within seconds: on one of them the failure comes out of here, to be reported; on the others
// StoppedByPeer does. Does not wait for ranks that do not answer. Throws UserError that says how to install
// MPI when this machine has none.
void run_mpi(const WorldOptions& options, const RankBody& body);

}  // namespace shoal
