// Writes the state that a killed run left in the memory of its hosts to its folder.
#pragma once

#include <string>

#include "comm/world.h"
#include "config/config.h"

namespace shoal {

// Collective. Where the hosts have a newer state than the run's folder, complete and undamaged, it becomes
// the latest checkpoint there. `session`: the name of the last start that trained the run
// (checkpoint/run_lock.h). Throws UserError where the checkpoint cannot be written; the state stays in memory
// then.
void restore_from_memory(World& world, const Config& config, const std::string& session);

}  // namespace shoal
