#include "launch/placement.h"

#include <algorithm>

namespace shoal {

RankPlacement place_ranks(const std::vector<Host>& hosts, int room, int least, const LayoutOf& layout_of,
                          int most) {
  RankPlacement result;
  for (int ranks = room; ranks >= least && ranks > 0; ranks = std::min(ranks - 1, most)) {
    auto layout = layout_of(ranks, fewest_on_a_host(hosts, ranks));
    if (layout.objection.empty())
      return {filled_hosts(hosts, ranks), ranks, std::move(layout), std::move(result.objection)};
    if (ranks == room) result.objection = std::move(layout.objection);
  }
  return result;
}

bool should_move(const RankPlacement& current, const RankPlacement& possible,
                 const std::vector<Host>& usable) {
  if (possible.ranks == 0) return false;
  const auto has_room = [&](const Host& used) {
    const auto host = std::ranges::find(usable, used.name, &Host::name);
    return host != usable.end() && host->slots >= used.slots;
  };
  return possible.ranks > current.ranks || !std::ranges::all_of(current.hosts, has_room);
}

NextAttempt next_attempt(const AttemptEnd& end) {
  if (end.stopped || end.refused) return NextAttempt::none;
  if (end.moved && !end.explained) return NextAttempt::free;
  if (!end.failed) return NextAttempt::none;
  if (end.new_host && !end.progressed) return NextAttempt::without;
  if (end.lost_host) return NextAttempt::free;
  return NextAttempt::counted;
}

}  // namespace shoal
