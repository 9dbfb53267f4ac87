// The cores that this process may run on.
#pragma once

namespace shoal {

// What its affinity mask allows (taskset, Slurm, mpirun --bind-to); one at least.
int usable_cores();

}  // namespace shoal
