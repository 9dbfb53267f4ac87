// The cores that this process may run on.
#pragma once

namespace shoal {

// The number of cores that the affinity mask allows (taskset, Slurm, mpirun --bind-to); one at least.
int usable_cores();

}  // namespace shoal
