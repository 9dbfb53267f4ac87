// A communicator that wraps another one and records its collectives as events of this thread's trace
// (core/trace.h): every collective from its call until it has been waited for, and every wait. While the
// thread has no trace, a collective costs the increment of a counter. A group of one rank records no events.
//
// The arguments of an event. `call` and `ranks` are equal on all members, so a reader can match events:
//   call     "all.1.0#17": the splits from the first group down to this one, and the number of the call
//            in this group; "all#m3" is the fourth message from one rank to another
//   ranks    "0,2,4,6": the group, as ranks of the first group; for a message, sender and receiver
//   bytes    size of the larger tensor
//   purpose  set by set_purpose()
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace shoal {

// Collective over the group. `inner` must outlive the result. Calls made directly on `inner` are not
// recorded.
std::unique_ptr<Communicator> make_tracing_communicator(Communicator& inner);

}  // namespace shoal
