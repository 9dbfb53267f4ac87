// A process as a rank of an MPI job.
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

// Where MPI cannot be loaded, ranks cannot agree on who says so: the first of every host does.
messages::Transport& load_or_say(const Launch& launch) {
  try {
    return mpi::load_transport(launch);
  } catch (const UserError&) {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
      const char* local = std::getenv(name);
      if (!local) continue;
      if (std::string_view(local) == "0") throw;
      std::this_thread::sleep_for(std::chrono::seconds(1));  // let it speak first
      throw StoppedByPeer();
    }
    throw;
  }
}

// Open MPI's mpirun binds each of one or two ranks to a single core unless it is told otherwise.
void warn_if_bound(const World& world) {
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const bool bound = std::getenv("OMPI_MCA_orte_bound_at_launch")  // version 4; 5 does not say so
                     || std::getenv("PRTE_LAUNCHED");
  if (!bound || usable_cores() * world.local_size >= online) return;
  log::warn(
      "mpirun binds each of {} rank(s) on this host to {} of its {} cores; start it with --bind-to none (or "
      "--map-by slot:PE=N) to use more",
      world.local_size, usable_cores(), online);
}

}  // namespace

void run_mpi(const WorldOptions& options, const RankBody& body) {
  messages::run_rank(load_or_say(detect_launch()), options, [&](World& world) {
    warn_if_bound(world);
    body(world);
  });
}

}  // namespace shoal
