// Finds and loads the module of NCCL.
#include "comm/nccl/nccl.h"
#include "core/error.h"
#include "core/module.h"

namespace shoal {
namespace {

constexpr const char *kFile = "libshoal_nccl.so", *kVariable = "SHOAL_NCCL_MODULE";

struct Loaded {
  const nccl::Library* library = nullptr;
  std::string why;  // there is none
};

Loaded load() {
  const auto path = find_module(kFile, kVariable);
  if (path.empty()) {
    return {nullptr, fmt::format("this program was built without NCCL ({} is {})", kFile, module_folders())};
  }
  const auto [entry, why] = load_module(path, nccl::kModuleEntry);
  if (!entry) return {nullptr, "NCCL cannot be loaded: " + why};
  return {reinterpret_cast<nccl::ModuleEntry>(entry)(), ""};
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

std::string no_nccl() { return loaded().why; }
std::string nccl_version() { return loaded().library ? loaded().library->version() : ""; }

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> inner, int number,
                                                     void* stream) {
  if (!loaded().library) fail("{}", loaded().why);
  return loaded().library->make_communicator(std::move(inner), number, stream);
}

}  // namespace shoal
