// Parts of the program that it loads when they are needed, so that it starts where what they use is missing.
#pragma once

#include <string>

namespace shoal {

// The file, beside the program, a folder above it, in ../lib or ../lib/shoal; the environment variable
// `variable` names another. Empty where there is none.
std::string find_module(const char* file, const char* variable);
// "neither in A nor in B", the likeliest of those folders, for messages.
std::string module_folders();

struct Module {
  void* entry = nullptr;  // what it exports under that name; stays until the process ends
  std::string why;        // there is none
};
// `global`: what the module links is there for other libraries, too.
Module load_module(const std::string& path, const char* entry, bool global = false);

// A module that this program may have been built without, with the words for messages.
struct OptionalModule {
  const char *file, *variable, *entry;
  const char* name;   // "the CUDA backend"
  const char* needs;  // "nvcc and cuBLASLt"
};
Module load_optional(const OptionalModule& module);

// The value that the function `entry` of a module returns.
template <typename Library>
struct LoadedLibrary {
  const Library* library = nullptr;
  std::string why;  // there is none
};
template <typename Library>
LoadedLibrary<Library> load_library(const OptionalModule& module) {
  const auto [entry, why] = load_optional(module);
  return {entry ? reinterpret_cast<const Library* (*)()>(entry)() : nullptr, why};
}

}  // namespace shoal
