// Finds and opens the module for the MPI that started this process.
#pragma once

#include "comm/messages/transport.h"
#include "comm/world.h"

namespace shoal::mpi {

// Whether this program was built for that MPI; the environment variable SHOAL_MPI_MODULE answers for any.
bool has_module(Launch::Kind kind);

// Throws UserError that says how to install MPI when the module or the MPI library cannot be loaded. The
// environment variable SHOAL_MPI_MODULE names another module.
messages::Transport& load_transport(const Launch& launch);

// The function that a module exports.
inline constexpr const char* kModuleEntry = "shoal_mpi_transport";
using ModuleEntry = messages::Transport* (*)();

}  // namespace shoal::mpi
