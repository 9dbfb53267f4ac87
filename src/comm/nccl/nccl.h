// Collectives on GPUs' memory by NCCL, from outside: nothing here needs NCCL's or CUDA's headers or
// libraries. It is a module, libshoal_nccl.so, that is built where NCCL is found and loaded when it is first
// asked for.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"

namespace shoal {

// Of the library, "2.28.9"; empty where the module cannot be loaded. The environment variable
// SHOAL_NCCL_MODULE names another module.
std::string nccl_version();
// Why there is none, in a sentence; empty where there is one.
std::string no_nccl();

// The group of `inner` with NCCL for what is in the memory of GPU `number` (CUDA's), of which every rank has
// one of its own. It talks through `inner` where it begins, and passes on to it what is in the host's memory,
// and messages that expect_messages() did not announce.
//
// What a collective is given is in GPUs' memory on all ranks, or on none.
//
// The host waits for no collective: it goes over a stream of the group's own when `stream` (a cudaStream_t)
// has come to its call, and Request::wait() makes `stream` wait for it. Only the first collective of a group
// waits here, until all members have come to theirs: NCCL connects them then.
//
// A thread of its own watches all groups of the rank: once a rank fails, or a deadline passes, it aborts
// them, so that their streams go on, and the rank's next call of any group throws.
//
// Throws Error where the module cannot be loaded.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> inner, int number,
                                                     void* stream);

namespace nccl {

// The module, as the program sees it; it lives as long as the process.
struct Library {
  std::unique_ptr<Communicator> (*make_communicator)(std::unique_ptr<Communicator> inner, int number,
                                                     void* stream);
  std::string (*version)();
};

// The function that it exports, which returns a const Library*.
inline constexpr const char* kModuleEntry = "shoal_nccl_library";

}  // namespace nccl
}  // namespace shoal
