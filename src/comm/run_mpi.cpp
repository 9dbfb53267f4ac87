// Runs this process as a rank of an MPI job.
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "comm/messages/run.h"
#include "comm/mpi/load.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/log.h"

namespace shoal {
namespace {

// Without MPI the ranks cannot agree on one that reports: local rank 0 of every host throws UserError.
messages::Transport& load_or_report(const Launcher& launch) {
  try {
    return mpi::load_transport(launch);
  } catch (const UserError&) {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
      const char* local = std::getenv(name);
      if (!local) continue;
      if (std::string_view(local) == "0") throw;
      std::this_thread::sleep_for(std::chrono::seconds(1));  // local rank 0 reports first
      throw StoppedByPeer();
    }
    throw;
  }
}

// The cores of the process that started this one: mpirun, or its daemon on another host, which are not bound
// themselves. 0: not known.
int cores_of_launcher() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return ::sched_getaffinity(::getppid(), sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}

// By default, Open MPI's mpirun binds each rank to a single core where there are one or two ranks.
void warn_if_bound(const World& world) {
  const int cores = cores_of_launcher();
  const bool may_be_bound = std::getenv("OMPI_MCA_orte_bound_at_launch")  // Open MPI 4
                            || std::getenv("PRTE_LAUNCHED");              // 5, of all ranks
  if (!may_be_bound || allowed_cores() * world.local_size >= cores) return;
  log::warn(
      "mpirun binds each of {} rank(s) on this host to {} of its {} cores; start it with --bind-to none (or "
      "--map-by slot:PE=N) to use more",
      world.local_size, allowed_cores(), cores);
}

}  // namespace

void run_mpi(const WorldOptions& options, const RankBody& body) {
  messages::run_rank(load_or_report(detect_launcher()), options, [&](World& world) {
    warn_if_bound(world);
    body(world);
  });
}

}  // namespace shoal
