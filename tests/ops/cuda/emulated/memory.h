// Memory of the emulated GPU. Every allocation ends where an inaccessible page begins, to within the 15 bytes
// that its alignment needs, so an access past the end faults; with SHOAL_EMULATED_GUARD=begin it begins
// behind one, so an access before it does. Freed memory is inaccessible, too, and not used again.
#pragma once

#include <cstddef>
#include <string>

namespace shoal::emulated {

enum class Kind { device, pinned, shared };

// Filled with NaN, so that reading uninitialised memory is noticed.
void* take_memory(std::size_t bytes, Kind kind);
// A write to the bytes after it, which no page guards, is a failure.
void give_back(void* memory);
bool is_pinned(const void* address);
// The addresses of all memory, unless there is a lot.
struct Arena {
  const std::byte* begin;
  std::size_t bytes;
};
const Arena& arena();
// "4 bytes past the end of 4012 bytes of GPU memory"
std::string describe(const void* address);

}  // namespace shoal::emulated
