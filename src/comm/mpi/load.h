// Finds and opens the module for the MPI that started this process.
#pragma once

#include "comm/mpi/library.h"
#include "comm/world.h"

namespace shoal::mpi {

// Whether this program was built for that MPI; the environment variable SHOAL_MPI_MODULE answers for any.
bool has_module(Launch::Kind kind);

// Throws UserError that says how to install MPI when the module or the MPI library cannot be loaded. The
// environment variable SHOAL_MPI_MODULE names another module.
Library& load_library(const Launch& launch);

}  // namespace shoal::mpi
