// The system's limits on this process, and what a failure says where one is exceeded.
#pragma once

#include <exception>
#include <string>

namespace shoal {

// error.what(), or a sentence that names the limit where memory or a thread could not be had.
std::string message_of(const std::exception& error);

// The bytes of addresses that `ulimit -v` still leaves this process; infinity without such a limit.
double address_space_left();

// The addresses that the stack of a new thread takes, in bytes.
double thread_stack_bytes();

// With such a limit, lets all threads allocate from one heap: of one of its own each would reserve 64 MiB of
// addresses, used or not.
void save_address_space();

}  // namespace shoal
