#include "planner/step_simulation.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "core/error.h"

namespace shoal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// On its way to a rank, or there and not received.
struct Message {
  int from = 0, channel = 0;
  double arrival = 0;
};

// A compute that has begun, or begins when its rank is free.
struct Compute {
  std::size_t stage = 0;
  double left = 0;  // seconds of work
  bool shares_core = false;
};

// One stage's rank on its way through its actions.
struct Rank {
  std::size_t next = 0;
  double now = 0;  // when it became free, or began what it does
  bool computes = false;
  double stream_free = 0, stream_done = 0;  // when the next collective can begin, and all have ended
  std::map<int, double> gathered;           // when the last call for a unit has ended
  std::deque<Message> inbox;
  std::map<int, double> link_free;  // when it can begin to send to another stage
};

class Simulation {
 public:
  Simulation(const std::vector<std::vector<StepAction>>& stages, const SharedCores& shared)
      : stages_(stages), shared_(shared), ranks_(stages.size()) {
    step_.terms.resize(stages.size());
    step_.spans.resize(stages.size());
    for (std::size_t s = 0; s < stages.size(); ++s) ready_.push_back(s);
  }

  // Alternates between all that takes no work of a core, and the advance of those that compute to the next
  // end, so that ranks which share cores slow each other only while they compute.
  SimulatedStep run() {
    do {
      while (!ready_.empty()) {
        const auto stage = ready_.back();
        ready_.pop_back();
        follow(stage);
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

  // Does everything of a rank up to its next compute, or to a message that has not been sent.
  void follow(std::size_t stage) {
    auto& rank = ranks_[stage];
    while (!rank.computes && rank.next < stages_[stage].size()) {
      const auto& action = stages_[stage][rank.next];
      if (!(action.seconds >= 0 && action.seconds < kNever))
        fail("an action of stage {} takes {} s", stage, action.seconds);
      if (action.kind == StepAction::Kind::compute) {
        rank.computes = true;
        (rank.now > time_ ? later_ : running_)
            .push_back({stage, action.seconds, shared_.cores > 0 && action.uses_core});
        return;
      }
      if (action.kind == StepAction::Kind::receive) {
        const auto message = std::ranges::find_if(rank.inbox, [&](const Message& one) {
          return one.from == action.peer && one.channel == action.channel;
        });
        if (message == rank.inbox.end()) return;
        wait(stage, action.term, message->arrival);
        rank.inbox.erase(message);
      } else if (action.kind == StepAction::Kind::send) {
        auto& free = rank.link_free[action.peer];
        free = std::max(free, rank.now) + action.seconds;
        const auto to = static_cast<std::size_t>(action.peer);
        ranks_[to].inbox.push_back({static_cast<int>(stage), action.channel, free + action.delay});
        ready_.push_back(to);
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
  }

  void wait(std::size_t stage, CostTerm why, double until) {
    auto& rank = ranks_[stage];
    if (until <= rank.now) return;
    term(stage, why) += until - rank.now;
    rank.now = until;
  }

  // Ends the compute that ends first. Ranks compute from `time_` on, or from when they became free.
  bool advance() {
    const double slowness = slowness_of_cores();
    const auto end_of = [&](const Compute& one) {
      return time_ + one.left * (one.shares_core ? slowness : 1);
    };
    // The next moment at which the set of computing ranks changes: one begins, or one ends.
    double next = kNever;
    for (const auto& one : running_) {
      const double end = end_of(one);
      if (end < next) next = end;
    }
    for (const auto& one : later_) next = std::min(next, ranks_[one.stage].now);
    if (next == kNever) return false;
    const double passed = next - time_, slow = passed / slowness, soon = next * (1 + 1e-15);
    for (auto i = running_.size(); i-- > 0;) {
      auto& one = running_[i];
      if (end_of(one) <= soon) {
        finish(one.stage, next);
        one = running_.back();
        running_.pop_back();
      } else {
        one.left -= one.shares_core ? slow : passed;
      }
    }
    time_ = next;
    std::erase_if(later_, [&](const Compute& one) {
      const bool begins = ranks_[one.stage].now <= time_;
      if (begins) running_.push_back(one);
      return begins;
    });
    return true;
  }

  double slowness_of_cores() const {
    if (shared_.cores == 0) return 1;
    const auto working = std::ranges::count(running_, true, &Compute::shares_core);
    return std::max(1.0,
                    static_cast<double>(working) * shared_.ranks_of_stage * shared_.threads / shared_.cores);
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
    rank.computes = false;
    ++rank.next;
    ready_.push_back(stage);
  }

  const std::vector<std::vector<StepAction>>& stages_;
  const SharedCores shared_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> ready_;  // stages whose rank may have something to do
  // Computes of ranks that are free at `time_`, and of those that are free later.
  std::vector<Compute> running_, later_;
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
