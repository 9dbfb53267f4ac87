// Simulates a step: the actions of the ranks of one pipeline, with times on them. Data and tensor ranks of a
// stage do the same at the same time, so one of them stands for all.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// The uses of a rank's time.
enum class CostTerm : std::uint8_t {
  forward,
  backward,    // with recomputation
  tensor,      // collectives of the tensor group
  stages,      // waits for other stages: bubbles and messages
  gradients,   // their reductions, as far as the rank waits for them
  parameters,  // gathers of sharded parameters, likewise
  update,      // norm, clipping, optimizer
  other,       // losses, and work of the host
};
inline constexpr int kCostTerms = 8;
std::string_view name_of(CostTerm term);

struct StepAction {
  enum class Kind : std::uint8_t {
    compute,  // a kernel, or a call that the rank waits for
    send,     // to `peer`: arrives after `seconds`, behind those that are on their way there, and `delay`
    receive,  // waits for the next message from `peer` of the same `channel`
    start,    // queues a call of `seconds` on the rank's stream of collectives, which ends a `delay` later
    join,     // waits until all of that stream have ended, or the last one that was queued for `unit`
  };
  Kind kind = Kind::compute;
  CostTerm term = CostTerm::forward;
  double seconds = 0, delay = 0;
  int peer = 0, channel = 0;
  bool uses_core = false;  // a compute that slows down where ranks share cores
  int pass = -1;           // the micro-batch, for pictures
  int unit = -1;           // whose parameters a queued call gathers, or a join waits for
};

struct SimulatedStep {
  struct Span {
    double begin = 0, end = 0;
    CostTerm term = CostTerm::forward;
    int pass = -1;
  };
  double seconds = 0;
  std::vector<std::array<double, kCostTerms>> terms;  // per stage; they add up to `seconds`
  std::vector<std::vector<Span>> spans;               // per stage, without waits
};

struct SharedCores {
  int cores = 0;           // 0: not shared
  int threads = 1;         // of a rank
  int ranks_of_stage = 1;  // on the host
};

// Throws Error where a rank waits for ever.
SimulatedStep simulate_step(const std::vector<std::vector<StepAction>>& stages, const SharedCores& shared);

}  // namespace shoal
