// The names of kernels, from the symbols of this module.
#pragma once

#include <string>

namespace shoal::emulated {

// "_ZN5shoal4cuda...", or "" if it is not known.
std::string mangled_name(const void* function);
// Without the namespaces and arguments: "cached_kernel<float>".
std::string readable_name(const void* function);

}  // namespace shoal::emulated
