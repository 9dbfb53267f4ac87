// Finds and loads the NCCL module.
#include "comm/nccl/nccl.h"
#include "core/error.h"
#include "core/module.h"

namespace shoal {
namespace {

constexpr OptionalModule kModule = {.file = "libshoal_nccl.so",
                                    .variable = "SHOAL_NCCL_MODULE",
                                    .entry = nccl::kModuleEntry,
                                    .name = "NCCL",
                                    .needs = "NCCL"};

const LoadedLibrary<nccl::Library>& loaded() {
  static const auto once = load_library<nccl::Library>(kModule);
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
