// The processor, and the cores that this process may run on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal {

// The number of cores that the affinity mask (taskset, Slurm, mpirun --bind-to) and a container's limit of
// CPUs allow; one at least.
int usable_cores();
// The numbers of the cores that the affinity mask alone allows, in ascending order; none where it is unknown.
std::vector<int> allowed_core_numbers();
// How many those are; all of the machine's where it is unknown.
int allowed_cores();
// A control group's quota of processor time in each period, "150000" and "100000", in whole cores; 0 for
// none, "max" or "-1".
int cores_of_quota(const std::string& quota, const std::string& period);

// The model in /proc/cpuinfo, "AMD EPYC 9B14"; "unknown" where that has none.
std::string processor_name();
// Bytes of the cache of a level, 1 to 3, that holds the data of the first core; 0 where that is unknown. The
// C library's sysconf adds up the third-level caches of some AMD processors. `folder` is the system's.
std::int64_t cache_bytes(int level, const std::string& folder = "/sys/devices/system/cpu/cpu0/cache");

}  // namespace shoal
