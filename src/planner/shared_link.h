// A link that several streams of messages share as TCP connections share one: equally, while they have
// something to send.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal {

// Messages of equal size, one after the other.
struct Flow {
  double busy = 0;                // ms of the link for a message, alone
  std::span<const double> ready;  // ms, by message; ascends
  std::span<double> end;          // by message; raised to when the link is done with it

  // For the link: the next message, and what is left of it.
  std::size_t next = 0;
  double left = 0;
};

class SharedLink {
 public:
  // Sends all messages of the flows, in the time that those of earlier calls left. Neither these nor later
  // ones are ready before `from`.
  void serve(std::span<Flow> flows, double from);

 private:
  struct Interval {
    double begin, end;
  };
  std::vector<Interval> taken_;  // ascends
};

}  // namespace shoal
