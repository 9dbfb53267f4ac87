// Wall-clock timing.
#pragma once

#include <algorithm>
#include <chrono>

namespace shoal {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// The time of a wait that is looked at several times a second. A longer gap counts as a second: the process
// was stopped meanwhile (Ctrl-Z, a suspended job), and did not wait.
class WaitWatch {
 public:
  double seconds() {
    waited_ += std::min(since_.seconds(), 1.0);
    since_.restart();
    return waited_;
  }

 private:
  Stopwatch since_;
  double waited_ = 0;
};

}  // namespace shoal
