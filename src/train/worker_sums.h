// Sums of the workers' losses and signals over every step of decentralised training. A sum is read some steps
// later, when averaging has made all workers wait for each other anyway, or where they average seldom (an
// outer optimizer) four steps later for each round: a worker may be as far ahead.
#pragma once

#include <array>
#include <deque>
#include <optional>

#include "comm/communicator.h"
#include "core/interrupt.h"
#include "parallel/gossip/topology.h"
#include "report/metrics.h"

namespace shoal {

class WorkerSums {
 public:
  // `ranks` are the ranks of all workers, which average every `interval` steps.
  WorkerSums(Communicator& ranks, const Topology& topology, std::int64_t interval);

  struct Numbers {
    double loss = 0, grad_norm = 0;  // given by one rank of each worker; read back as means over workers
    double skipped = 0;  // given as 1 where the worker left the step out; read back as their number
    std::array<double, InterruptGuard::kSignals> signals = InterruptGuard::counts();  // counts, summed
    // Kept on this rank.
    std::int64_t step = 0;
    std::optional<StepRecord> record = {};  // completed with the means
  };
  // Starts the sum of a step. Collective.
  void post(const Numbers& mine);
  // The oldest sum that has not been read, where it is old enough or `all` is asked for. Collective.
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
