// Starting the ranks of a command.
#pragma once

#include <functional>

#include "comm/world.h"
#include "config/config.h"

namespace shoal {

// For `asked` below: one rank for every core or, on GPUs, for every GPU.
inline constexpr int kAllRanks = -1;

// Calls `body` once per rank with the config that `load` returns: in this process alone where mpirun or srun
// started it as a rank of theirs, else on threads: `asked` of them (0: not asked), or as many as the mesh
// of [parallel] has, with one data rank where it leaves them open. Ranks other than 0 say nothing on the way.
// Throws UserError, with both numbers, when two of launcher, `asked` and [parallel] want another number.
void with_ranks(int asked, const std::function<Config()>& load,
                const std::function<void(const Config& config, World& world)>& body);

// What the above would start.
int ranks_to_start(const Config& config, int asked, const Launcher& launch);

}  // namespace shoal
