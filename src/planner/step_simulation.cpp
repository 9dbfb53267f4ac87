#include "planner/step_simulation.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "core/error.h"

namespace shoal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// One stage's rank on its way through its actions.
struct Rank {
  std::size_t next = 0;
  double now = 0;                           // when it became free, or began what it does
  double left = -1;                         // seconds of work of a compute that has begun; negative: none has
  double stream_free = 0, stream_done = 0;  // when the next collective can begin, and all have ended
  std::map<int, double> gathered;           // when the last call for a unit has ended
};

class Simulation {
 public:
  Simulation(const std::vector<std::vector<StepAction>>& stages, const SharedCores& shared)
      : stages_(stages), shared_(shared), ranks_(stages.size()) {
    step_.terms.resize(stages.size());
    step_.spans.resize(stages.size());
  }

  // Alternates between all that takes no work of a core, and the advance of those that compute to the next
  // end, so that ranks which share cores slow each other only while they compute.
  SimulatedStep run() {
    do {
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t s = 0; s < stages_.size(); ++s) moved |= follow(s);
      }
    } while (advance());
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (ranks_[s].next < stages_[s].size())
        fail("the simulated step cannot end: stage {} waits for ever", s);
      step_.seconds = std::max(step_.seconds, ranks_[s].now);
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      term(s, CostTerm::stages) += step_.seconds - ranks_[s].now;
    }
    return std::move(step_);
  }

 private:
  double& term(std::size_t stage, CostTerm term) {
    return step_.terms[stage][static_cast<std::size_t>(term)];
  }
  std::deque<double>& messages(std::size_t from, int to, int channel) {
    return messages_[{static_cast<int>(from), to, channel}];
  }

  // Does everything up to the next compute of a rank; returns whether that was anything.
  bool follow(std::size_t stage) {
    auto& rank = ranks_[stage];
    bool moved = false;
    for (; rank.left < 0 && rank.next < stages_[stage].size(); moved = true) {
      const auto& action = stages_[stage][rank.next];
      if (!(action.seconds >= 0 && action.seconds < kNever))
        fail("an action of stage {} takes {} s", stage, action.seconds);
      if (action.kind == StepAction::Kind::compute) {
        rank.left = action.seconds;
        return true;
      }
      if (action.kind == StepAction::Kind::receive) {
        auto& arrivals =
            messages(static_cast<std::size_t>(action.peer), static_cast<int>(stage), action.channel);
        if (arrivals.empty()) return moved;
        wait(stage, action.term, arrivals.front());
        arrivals.pop_front();
      } else if (action.kind == StepAction::Kind::send) {
        auto& free = link_free_[{static_cast<int>(stage), action.peer}];
        free = std::max(free, rank.now) + action.seconds;
        messages(stage, action.peer, action.channel).push_back(free + action.delay);
      } else if (action.kind == StepAction::Kind::start) {
        rank.stream_free = std::max(rank.stream_free, rank.now) + action.seconds;
        const double end = rank.stream_free + action.delay;
        rank.stream_done = std::max(rank.stream_done, end);
        if (action.unit >= 0) rank.gathered[action.unit] = end;
      } else {
        wait(stage, action.term, action.unit < 0 ? rank.stream_done : rank.gathered[action.unit]);
      }
      ++rank.next;
    }
    return moved;
  }

  void wait(std::size_t stage, CostTerm why, double until) {
    auto& rank = ranks_[stage];
    if (until <= rank.now) return;
    term(stage, why) += until - rank.now;
    rank.now = until;
  }

  // Ends the compute that ends first. Ranks compute from `time_` on, or from when they became free.
  bool advance() {
    // The next moment at which the set of computing ranks changes: one begins, or one ends.
    double next = kNever;
    int working = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const auto& rank = ranks_[s];
      if (rank.left < 0) continue;
      if (rank.now > time_) {
        next = std::min(next, rank.now);
      } else if (uses_core(s)) {
        ++working;
      }
    }
    const double slowness = slowness_of(working);
    bool any = false;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const auto& rank = ranks_[s];
      if (rank.left < 0 || rank.now > time_) continue;
      any = true;
      next = std::min(next, time_ + rank.left * (uses_core(s) ? slowness : 1));
    }
    if (next == kNever) return false;
    for (std::size_t s = 0; any && s < stages_.size(); ++s) {
      auto& rank = ranks_[s];
      if (rank.left < 0 || rank.now > time_) continue;
      const double rate = uses_core(s) ? slowness : 1;
      const double end = time_ + rank.left * rate;
      if (end <= next * (1 + 1e-15)) {
        finish(s, next);
      } else {
        rank.left -= (next - time_) / rate;
      }
    }
    time_ = next;
    return true;
  }

  bool uses_core(std::size_t stage) const {
    return shared_.cores > 0 && stages_[stage][ranks_[stage].next].uses_core;
  }
  double slowness_of(int working) const {
    if (shared_.cores == 0) return 1;
    return std::max(1.0, 1.0 * working * shared_.ranks_of_stage * shared_.threads / shared_.cores);
  }

  void finish(std::size_t stage, double end) {
    auto& rank = ranks_[stage];
    const auto& action = stages_[stage][rank.next];
    const double begin = rank.now;
    term(stage, action.term) += end - begin;
    auto& spans = step_.spans[stage];
    if (!spans.empty() && spans.back().term == action.term && spans.back().pass == action.pass &&
        spans.back().end == begin) {
      spans.back().end = end;
    } else if (end > begin) {
      spans.push_back({begin, end, action.term, action.pass});
    }
    rank.now = end;
    rank.left = -1;
    ++rank.next;
  }

  const std::vector<std::vector<StepAction>>& stages_;
  const SharedCores shared_;
  std::vector<Rank> ranks_;
  std::map<std::array<int, 3>, std::deque<double>> messages_;
  std::map<std::pair<int, int>, double> link_free_;  // when a stage can begin to send to another
  double time_ = 0;
  SimulatedStep step_;
};

}  // namespace

std::string_view name_of(CostTerm term) {
  constexpr std::string_view kNames[kCostTerms] = {"forward",   "backward",   "tensor", "stages",
                                                   "gradients", "parameters", "update", "other"};
  return kNames[static_cast<std::size_t>(term)];
}

SimulatedStep simulate_step(const std::vector<std::vector<StepAction>>& stages, const SharedCores& shared) {
  return Simulation(stages, shared).run();
}

}  // namespace shoal
