// Collectives among the ranks of an MPI job.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/messages/engine.h"

namespace shoal::messages {

// The engine must outlive the communicator. A group of one rank does not use it.
std::unique_ptr<Communicator> make_communicator(Engine& engine, std::shared_ptr<Group> group);

}  // namespace shoal::messages
