// The processor, and the cores that this process may run on.
#pragma once

#include <string>

namespace shoal {

// The number of cores that the affinity mask allows (taskset, Slurm, mpirun --bind-to); one at least.
int usable_cores();

// The model in /proc/cpuinfo, "AMD EPYC 9B14"; "unknown" where that has none.
std::string processor_name();

}  // namespace shoal
