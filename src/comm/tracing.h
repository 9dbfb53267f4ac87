// A communicator that writes down what another one does, as events of this thread's trace (core/trace.h):
// every collective from its call until it has been waited for, and every wait. While the thread traces
// nothing it costs a count. A group of one has no events.
//
// Arguments of a collective's events, by which those of all members find each other:
//   call     "all.1.0#17": the splits that led from the first group to this one, and the call's number there;
//            "all#m3" is the fourth message from one rank to another
//   ranks    "0,2,4,6": the group, as ranks of the first one; of a message, sender and receiver
//   bytes    of its larger tensor
//   purpose  as it was set
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace shoal {

// Collective over the group. `inner` outlives it, and what else talks through `inner` is not seen.
std::unique_ptr<Communicator> make_tracing_communicator(Communicator& inner);

}  // namespace shoal
