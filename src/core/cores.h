// The processor, and the cores that this process may run on.
#pragma once

#include <string>

namespace shoal {

// The number of cores that the affinity mask (taskset, Slurm, mpirun --bind-to) and a container's limit of CPUs
// allow; one at least.
int usable_cores();
// The number of cores that the affinity mask alone allows.
int allowed_cores();
// A control group's quota of processor time in each period, "150000" and "100000", in whole cores; 0 for none,
// "max" or "-1".
int cores_of_quota(const std::string& quota, const std::string& period);

// The model in /proc/cpuinfo, "AMD EPYC 9B14"; "unknown" where that has none.
std::string processor_name();

}  // namespace shoal
