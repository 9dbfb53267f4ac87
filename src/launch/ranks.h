// Starts the ranks of a command.
#pragma once

#include <functional>

#include "comm/world.h"
#include "config/config.h"

namespace shoal {

// Value of `asked`: one rank per core or, on GPUs, per GPU.
inline constexpr int kAllRanks = -1;

// The ranks of a command.
struct Job {
  int ranks = 1;
  World* world = nullptr;  // of this process's rank, where mpirun or srun started it; else ranks are threads
};

// Calls `body` with the config that `load` returns and the job: once, or in a job of MPI on each rank. Ranks
// other than 0 do not log. The number of ranks and the errors are those of with_ranks().
// Throws UserError on task 0, and StoppedByPeer on the others, where srun started several tasks that cannot
// find each other, and `asked` is 0.
void with_job(int asked, const std::function<Config()>& load,
              const std::function<void(const Config& config, const Job& job)>& body);

// Calls `body` on every rank of the job.
void run_ranks(const Config& config, const Job& job,
               const std::function<void(const Config& config, World& world)>& body);

// Both: calls `body` once per rank with the config that `load` returns. Where mpirun or srun started this
// process, it runs one rank; else ranks are threads. Their number is `asked`, or, if that is 0, the size of
// the mesh in [parallel], with one data rank where parallel.data = 0. Ranks other than 0 do not log. Throws
// UserError, with both numbers, when two of launcher, `asked` and [parallel] contradict each other.
void with_ranks(int asked, const std::function<Config()>& load,
                const std::function<void(const Config& config, World& world)>& body);

// The launcher whose rank this process is. One that started a single rank, such as a step of Slurm in which
// `srun --pty bash` runs, leaves it to --ranks where that is given.
Launcher launcher_of(int asked);

// The number of ranks that with_ranks() starts.
int ranks_to_start(const Config& config, int asked, const Launcher& launch);

}  // namespace shoal
