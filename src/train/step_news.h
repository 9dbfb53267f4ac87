// What workers tell each other of every step without waiting for one another: it is read some steps later,
// when their averaging has made them wait for all anyway.
#pragma once

#include <array>
#include <deque>
#include <optional>

#include "comm/communicator.h"
#include "core/interrupt.h"
#include "parallel/gossip/topology.h"
#include "report/metrics.h"

namespace shoal {

class StepNews {
 public:
  // `ranks` are those of all workers.
  StepNews(Communicator& ranks, const Topology& topology);

  struct Numbers {
    double loss = 0, grad_norm = 0;  // of a worker, told by one of its ranks; then their means
    double skipped = 0;              // likewise, 1 where the worker left the step out; then their number
    std::array<double, InterruptGuard::kSignals> signals = InterruptGuard::counts();  // counts
    // What stays on this rank.
    std::int64_t step = 0;
    std::optional<StepRecord> record = {};  // to be completed by the means
  };
  // Collective: every rank's of the same step. `record` is of this rank alone.
  void post(const Numbers& mine);
  // The oldest that has not been read, if it is old enough; with `all`, whatever its age. Collective.
  std::optional<Numbers> next(bool all);

 private:
  struct Post {
    std::array<double, 3 + InterruptGuard::kSignals> sums;
    std::int64_t step;
    std::optional<StepRecord> record;
    Request request;
  };

  Communicator& ranks_;
  int workers_;
  std::size_t lag_;  // steps
  std::deque<Post> posts_;
};

}  // namespace shoal
