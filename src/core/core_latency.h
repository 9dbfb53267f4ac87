// How far apart cores are.
#pragma once

namespace shoal {

// Seconds that a word takes from a thread on core `here` to one on core `there`: the least of some
// measurements, 20 ms in all on idle cores. Cores that share no third-level cache are some times further
// apart than those that do; hosts of virtual machines move virtual cores between the two. 0 where this
// thread may not run on both.
double core_latency(int here, int there);

}  // namespace shoal
