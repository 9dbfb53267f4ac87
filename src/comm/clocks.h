// Compares the clocks of several hosts, so that a trace can draw all ranks on one time axis.
#pragma once

#include <cstdint>
#include <functional>

#include "comm/communicator.h"

namespace shoal {

struct HostClock {
  std::uint64_t id = 0;         // equal on ranks that read the same clock
  std::function<double()> now;  // seconds
};
HostClock host_clock();  // the monotonic clock, which all processes of a host share

// The time of rank 0 minus the time of this rank, in seconds, measured when this rank's clock showed `at`.
// The error is at most `uncertainty`. All are exactly 0, but `at`, where both ranks read the same clock.
struct ClockOffset {
  double at = 0, offset = 0, uncertainty = 0;
};

// Collective. A rank with another clock than rank 0's asks rank 0 for the time `rounds` times and uses the
// fastest answer (F. Cristian, Probabilistic clock synchronization, 1989).
ClockOffset compare_clocks(Communicator& ranks, const HostClock& clock, int rounds = 32);

// Converts a time of this rank's clock to rank 0's clock, by linear interpolation between two comparisons.
double time_of_first(double time, const ClockOffset& begin, const ClockOffset& end);

}  // namespace shoal
