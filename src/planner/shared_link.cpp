#include "planner/shared_link.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shoal {
namespace {

bool sends(const Flow& flow, double t) { return flow.next < flow.ready.size() && flow.ready[flow.next] <= t; }

// The state of the link at one time.
struct Demand {
  int flows = 0;                                          // number of flows that send
  double least = 0;                                       // smallest rest of their messages, ms
  double more = std::numeric_limits<double>::infinity();  // time when the next flow starts
};

Demand demand_at(double t, std::span<const Flow> flows) {
  Demand demand;
  for (const auto& flow : flows) {
    if (sends(flow, t)) {
      demand.least = demand.flows == 0 ? flow.left : std::min(demand.least, flow.left);
      ++demand.flows;
    } else if (flow.next < flow.ready.size()) {
      demand.more = std::min(demand.more, flow.ready[flow.next]);
    }
  }
  return demand;
}

// All sending flows send until `end`. This completes at most the messages with the smallest rest.
void send(std::span<Flow> flows, const Demand& demand, double t, double end, bool completes) {
  for (auto& flow : flows) {
    if (!sends(flow, t)) continue;
    if (completes && flow.left == demand.least) {
      flow.end[flow.next] = std::max(flow.end[flow.next], end);
      ++flow.next;
      flow.left = flow.busy;
    } else {
      flow.left = std::max(0.0, flow.left - (end - t) / demand.flows);
    }
  }
}

}  // namespace

void SharedLink::serve(std::span<Flow> flows, double from) {
  std::erase_if(taken_, [&](const Interval& one) { return one.end <= from; });
  const std::size_t earlier = taken_.size();
  for (auto& flow : flows) flow.left = flow.busy;
  std::size_t i = 0;  // the first taken interval that is not over
  double t = from;
  for (;;) {
    const auto demand = demand_at(t, flows);
    if (demand.flows == 0) {
      if (std::isinf(demand.more)) break;
      t = demand.more;
      continue;
    }
    while (i < earlier && taken_[i].end <= t) ++i;
    if (i < earlier && taken_[i].begin <= t) {
      t = taken_[i].end;
      continue;
    }
    const double whole = t + demand.least * demand.flows,
                 end = std::min({whole, demand.more, i < earlier ? taken_[i].begin : whole});
    send(flows, demand, t, end, end == whole);
    if (taken_.size() > earlier && taken_.back().end == t) {
      taken_.back().end = end;
    } else {
      taken_.push_back({t, end});
    }
    t = end;
  }
  std::ranges::inplace_merge(taken_, taken_.begin() + static_cast<std::ptrdiff_t>(earlier), {},
                             &Interval::begin);
}

}  // namespace shoal
