// The names of kernels, from the symbols of this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shoal::emulated {

// "_ZN5shoal4cuda...", or "" if it is not known.
std::string mangled_name(const void* function);
// Without the namespaces and arguments: "cached_kernel<float>".
std::string readable_name(const void* function);

// The offset of an address in this module, for addr2line.
std::uintptr_t code_offset(const void* code);

// The static arrays of kernels, their __shared__ ones.
struct StaticArray {
  const std::byte* begin;
  std::size_t bytes;
};
std::vector<StaticArray> static_arrays();

}  // namespace shoal::emulated
