// Finds and opens the module for the MPI library that started this process.
#pragma once

#include "comm/messages/transport.h"
#include "comm/world.h"

namespace shoal::mpi {

// Whether this program was built with that MPI. True for all where the environment variable SHOAL_MPI_MODULE
// names a module.
bool has_module(Launcher::Kind kind);

// Throws MpiUnavailable when the module or the MPI library cannot be loaded. The environment variable
// SHOAL_MPI_MODULE overrides the module.
messages::Transport& load_transport(const Launcher& launch);

// The function that each module exports.
inline constexpr const char* kModuleEntry = "shoal_mpi_transport";
using ModuleEntry = messages::Transport* (*)();

}  // namespace shoal::mpi
