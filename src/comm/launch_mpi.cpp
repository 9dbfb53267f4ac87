// A process as a rank of an MPI job.
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "comm/mpi/load.h"
#include "comm/mpi/run.h"
#include "core/error.h"

namespace shoal {
namespace {

// Where MPI cannot be loaded, ranks cannot agree on who says so: the first of every host does.
mpi::Library& load_or_say(const Launch& launch) {
  try {
    return mpi::load_library(launch);
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

}  // namespace

void run_mpi(const WorldOptions& options, const RankBody& body) {
  mpi::run_rank(load_or_say(detect_launch()), options, body);
}

}  // namespace shoal
