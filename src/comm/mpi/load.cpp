#include "comm/mpi/load.h"

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "core/error.h"

namespace shoal::mpi {
namespace {

namespace fs = std::filesystem;

struct Implementation {
  const char* name;
  const char* module;
  const char* packages;  // what a machine needs to run it
  const char* to_build;  // what the module is built with
};

const Implementation& implementation(Launch::Kind kind) {
  static constexpr Implementation kOpenMpi{"Open MPI", "libshoal_mpi_openmpi.so", "openmpi-bin",
                                           "libopenmpi-dev"};
  static constexpr Implementation kMpich{"MPICH", "libshoal_mpi_mpich.so", "mpich", "libmpich-dev"};
  return kind == Launch::Kind::open_mpi ? kOpenMpi : kMpich;
}

fs::path folder_of_program() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

// "" where there is none.
std::string look_for_module(const Implementation& mpi) {
  if (const char* named = std::getenv("SHOAL_MPI_MODULE")) return named;
  std::error_code ignored;
  const auto here = folder_of_program();
  for (const auto& folder : {here, here / "../lib", here / "../lib/shoal"}) {
    if (fs::exists(folder / mpi.module, ignored)) return (folder / mpi.module).lexically_normal().string();
  }
  return "";
}

std::string find_module(const Launch& launch, const Implementation& mpi) {
  if (auto module = look_for_module(mpi); !module.empty()) return module;
  const auto here = folder_of_program();
  fail_user(
      "{} started {} ranks with {}, but this program was built without it: {} is neither in {} nor in {}. "
      "Install {} and build again, or start `--ranks {}` without {}: ranks as threads need no MPI",
      launch.by, launch.ranks, mpi.name, mpi.module, here.string(), (here.parent_path() / "lib").string(),
      mpi.to_build, launch.ranks, launch.by);
}

// Open MPI's ranks of one host read each other's memory, which some containers forbid; it would notice in the
// middle of a message. What the user has set stays.
void avoid_forbidden_reads() {
  int from = 1, to = 0;
  const iovec source{&from, sizeof from}, target{&to, sizeof to};
  if (::process_vm_readv(::getpid(), &target, 1, &source, 1, 0) == sizeof from) return;
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

}  // namespace

bool has_module(Launch::Kind kind) { return !look_for_module(implementation(kind)).empty(); }

Library& load_library(const Launch& launch) {
  const auto& mpi = implementation(launch.kind);
  const auto path = find_module(launch, mpi);
  avoid_forbidden_reads();
  // Global, because Open MPI's own plugins look for its symbols.
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!module) {
    const char* why = ::dlerror();
    fail_user(
        "{} started {} ranks with {}, which cannot be loaded: {}. Install it (on Debian and Ubuntu: apt-get "
        "install {}), or start `--ranks {}` without {}: ranks as threads need no MPI",
        launch.by, launch.ranks, mpi.name, why ? why : path, mpi.packages, launch.ranks, launch.by);
  }
  const auto entry = reinterpret_cast<ModuleEntry>(::dlsym(module, kModuleEntry));
  if (!entry) fail_user("{} is not a module of this program (SHOAL_MPI_MODULE)", path);
  return *entry();
}

}  // namespace shoal::mpi
