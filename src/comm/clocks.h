// Clocks of ranks on several hosts, compared, so that their times can be drawn on one axis.
#pragma once

#include <cstdint>
#include <functional>

#include "comm/communicator.h"

namespace shoal {

struct HostClock {
  std::uint64_t id = 0;         // the same where ranks read one clock
  std::function<double()> now;  // seconds
};
HostClock host_clock();  // the monotonic one, which all processes of a host share

// What to add to this rank's clock, around the time `at` of it, to get that of rank 0; it is off by
// `uncertainty` at most. Seconds; exactly 0 where both read the same clock.
struct ClockOffset {
  double at = 0, offset = 0, uncertainty = 0;
};

// Collective. Ranks whose clock is another than rank 0's ask it for the time `rounds` times, and believe the
// fastest answer (F. Cristian, Probabilistic clock synchronization, 1989).
ClockOffset compare_clocks(Communicator& ranks, const HostClock& clock, int rounds = 32);

// A time of this rank's clock in that of rank 0, by two comparisons; between them clocks drift evenly.
double time_of_first(double time, const ClockOffset& begin, const ClockOffset& end);

}  // namespace shoal
