#include "core/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace shoal {
namespace {

namespace fs = std::filesystem;

fs::path folder_of_program() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

}  // namespace

std::string find_module(const char* file, const char* variable) {
  if (const char* named = std::getenv(variable)) return named;
  std::error_code ignored;
  const auto here = folder_of_program();
  for (const auto& folder : {here, here / "..", here / "../lib", here / "../lib/shoal"}) {
    if (fs::exists(folder / file, ignored)) return (folder / file).lexically_normal().string();
  }
  return "";
}

std::string module_folders() {
  const auto here = folder_of_program();
  return fmt::format("neither in {} nor in {}", here.string(), (here.parent_path() / "lib/shoal").string());
}

Module load_module(const std::string& path, const char* entry, bool global) {
  void* module = ::dlopen(path.c_str(), RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (!module) {
    const char* why = ::dlerror();
    return {nullptr, why ? why : path};
  }
  void* found = ::dlsym(module, entry);
  return {found, found ? "" : path + " is not a module of this program"};
}

Module load_optional(const OptionalModule& module) {
  const auto path = find_module(module.file, module.variable);
  if (path.empty()) {
    return {nullptr, fmt::format("this program was built without {} ({} is {})", module.needs, module.file,
                                 module_folders())};
  }
  const auto [entry, why] = load_module(path, module.entry);
  return {entry, entry ? "" : fmt::format("{} cannot be loaded: {}", module.name, why)};
}

}  // namespace shoal
