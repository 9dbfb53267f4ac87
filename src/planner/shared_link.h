// A network link shared by several streams of messages, as by TCP connections: the streams that have
// something to send get equal shares.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal {

// A stream of messages of equal size, sent one after another.
struct Flow {
  double busy = 0;                // ms that a message occupies the link alone
  std::span<const double> ready;  // ms, by message; ascending
  std::span<double> end;          // ms, by message; raised to the time when the link has sent it

  // Used by SharedLink: the next message, and the rest of it in ms.
  std::size_t next = 0;
  double left = 0;
};

class SharedLink {
 public:
  // Sends all messages of the flows, in the time that earlier calls left free. No message of this or a later
  // call is ready before `from`.
  void serve(std::span<Flow> flows, double from);

 private:
  struct Interval {
    double begin, end;
  };
  std::vector<Interval> taken_;  // ascending
};

}  // namespace shoal
