// Starts ranks as threads of this process, or joins this process to the ranks that mpirun or srun started.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "core/error.h"

namespace shoal {

// One rank's view of all ranks.
struct World {
  Communicator& ranks;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int cores = 1;      // this rank's share of the host's cores, at least 1
  std::string where;  // for the log: "4 threads of this process", "16 ranks on 4 hosts (Open MPI 4.1.4)"
  int exit_code = 0;  // set by the body, for a process that ends without MPI, where that hangs
};

struct WorldOptions {
  int ranks = 1;                  // for run_threads only
  double deadline_seconds = 600;  // of every collective
  double end_seconds = 10;        // for run_mpi only: of MPI_Finalize, after all ranks have done their work
};

using RankBody = std::function<void(World& world)>;

// Runs `body` on options.ranks threads of this process. When one rank throws, the collectives of the others
// throw StoppedByPeer. When all ranks have ended, the first failure is thrown again; its message gets the
// prefix "rank R: " unless all ranks failed with the same message.
void run_threads(const WorldOptions& options, const RankBody& body);

// The program that started this process, found from environment variables.
struct Launcher {
  enum class Kind { alone, open_mpi, mpich };  // mpich: MPICH's mpirun, or any launcher with PMI or PMI-2
  Kind kind = Kind::alone;
  int rank = 0, ranks = 1;
  std::string name;  // "mpirun", "srun", ...
  // Alone, but one of several tasks that srun started without an MPI: each is a program of its own.
  int task = 0, tasks = 1;
};
Launcher detect_launcher();

// The MPI that started this process cannot be used; the message has the reason and what to install.
struct MpiUnavailable : UserError {
  using UserError::UserError;
};

// Runs `body` as this process's rank of its MPI job. When one rank throws, all ranks end within seconds:
// run_mpi throws the failure on one rank, which reports it, and StoppedByPeer on the others. It does not wait
// for ranks that do not answer. Throws MpiUnavailable where the MPI library cannot be loaded.
void run_mpi(const WorldOptions& options, const RankBody& body);

}  // namespace shoal
