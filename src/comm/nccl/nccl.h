// Collectives on GPU memory by NCCL. This header needs no header or library of NCCL or CUDA: the
// implementation is a module, libshoal_nccl.so, built where NCCL is found and loaded at its first use.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"

namespace shoal {

// NCCL's version, "2.28.9"; empty where the module cannot be loaded. The environment variable
// SHOAL_NCCL_MODULE names another file for the module.
std::string nccl_version();
// Why the module cannot be loaded, in a sentence; empty where it can.
std::string no_nccl();

// A communicator over the group of `inner` that uses NCCL for tensors in the memory of GPU `number` (CUDA's
// number; every rank has a GPU of its own). It uses `inner` for its setup, for tensors in host memory, and
// for messages that were not announced with expect_messages().
//
// The tensors of a collective must be in GPU memory on all ranks or on none.
//
// The host does not wait for collectives. A collective runs on a stream of the group after the work that
// `stream` (a cudaStream_t) has so far, and Request::wait() makes `stream` wait for it. Only the first
// collective of a group blocks the host until all members have called it, because NCCL then connects them.
//
// A thread watches all groups of the rank. When a rank fails or a deadline passes, it aborts the groups, so
// that their streams continue, and the rank's next call on any group throws.
//
// Throws Error where the module cannot be loaded.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> inner, int number,
                                                     void* stream);

namespace nccl {

// The functions of the module, which stays loaded until the process ends.
struct Library {
  std::unique_ptr<Communicator> (*make_communicator)(std::unique_ptr<Communicator> inner, int number,
                                                     void* stream);
  std::string (*version)();
};

// The function that the module exports, which returns a const Library*.
inline constexpr const char* kModuleEntry = "shoal_nccl_library";

}  // namespace nccl
}  // namespace shoal
