// Places where a program goes on, each with a stack of its own. Unlike contexts they need no system calls,
// and unlike setjmp's they hold what the compiler cannot restore itself, no more.
#pragma once

#include <cstddef>

namespace shoal::emulated {

using Place = void* [5];  // as __builtin_setjmp has it

// Each returns when something goes on at `from`. `run` has a stack of its own, and must not return.
void begin_on(std::byte* stack, std::size_t bytes, void (*run)(), Place& from);
void go_on_at(Place& to, Place& from);
[[noreturn]] void go_on_at(Place& to);

}  // namespace shoal::emulated
