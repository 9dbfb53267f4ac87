// Decisions of `shoal launch`, without processes: the hosts and ranks of an attempt, whether to stop it for
// others, and whether another one follows.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "launch/hosts.h"

namespace shoal {

// The layout in which a number of ranks shares a run.
struct RankLayout {
  std::string objection = {};              // why there is none; "": there is one
  std::vector<std::string> settings = {};  // arguments that change the command's own layout
  std::string mesh = {};                   // "2 stages x 3 data ranks"; "" for data ranks only
};

// `ranks_per_host` is as in resolve_layout().
using LayoutOf = std::function<RankLayout(int ranks, int ranks_per_host)>;

struct RankPlacement {
  std::vector<Host> hosts;  // each with the number of its ranks; empty: as mpirun chooses
  int ranks = 0;            // 0: no number of ranks has a layout
  RankLayout layout = {};
  std::string objection = {};  // why not all the room is used; ""
};

// The largest number of ranks from `room` down to `least` that has a layout, which more than `most` cannot
// have. `hosts` take `room` ranks or more, or are empty.
RankPlacement place_ranks(const std::vector<Host>& hosts, int room, int least, const LayoutOf& layout_of,
                          int most = std::numeric_limits<int>::max());

// Whether running ranks should stop and start again in another placement: a host of theirs has no longer
// their room, or the other placement has more ranks. `usable`: all hosts that may be used now.
bool should_move(const RankPlacement& current, const RankPlacement& possible,
                 const std::vector<Host>& usable);

// The end of an attempt, all ranks together.
struct AttemptEnd {
  bool failed = false;
  bool explained = false;   // a rank has printed its error
  bool refused = false;     // the user's input is at fault
  bool stopped = false;     // a signal asked the launcher to stop
  bool moved = false;       // the launcher stopped the ranks, for another placement
  bool progressed = false;  // it got beyond the step that it began with
  bool lost_host = false;   // a host no longer answers
  bool new_host = false;    // some of its hosts had no part in progress yet, or not since they came back
};

enum class NextAttempt : std::uint8_t {
  none,
  free,     // does not count as a restart
  without,  // the same, without the new hosts
  counted,  // if there are restarts left
};

// Hosts that come and go use up no restarts. For this to end, a host that comes and brings no progress is
// left out for a while.
NextAttempt next_attempt(const AttemptEnd& end);

}  // namespace shoal
