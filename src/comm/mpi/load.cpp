#include "comm/mpi/load.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "core/module.h"

namespace shoal::mpi {
namespace {

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

// "" where there is none.
std::string look_for_module(const Implementation& mpi) { return find_module(mpi.module, "SHOAL_MPI_MODULE"); }

std::string module_for(const Launch& launch, const Implementation& mpi) {
  if (auto module = look_for_module(mpi); !module.empty()) return module;
  fail_user(
      "{} started {} ranks with {}, but this program was built without it: {} is {}. "
      "Install {} and build again, or start `--ranks {}` without {}: ranks as threads need no MPI",
      launch.by, launch.ranks, mpi.name, mpi.module, module_folders(), mpi.to_build, launch.ranks, launch.by);
}

// Open MPI's ranks of one host read each other's memory, which some containers forbid; it would notice in the
// middle of a message. What the user has set stays.
void avoid_forbidden_reads() {
  int from = 1, to = 0;
  const iovec source{&from, sizeof from}, target{&to, sizeof to};
  if (::process_vm_readv(::getpid(), &target, 1, &source, 1, 0) == sizeof from) return;
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);  // version 4
  ::setenv("OMPI_MCA_smsc", "^cma", 0);                             // version 5
}

}  // namespace

bool has_module(Launch::Kind kind) { return !look_for_module(implementation(kind)).empty(); }

messages::Transport& load_transport(const Launch& launch) {
  const auto& mpi = implementation(launch.kind);
  const auto path = module_for(launch, mpi);
  avoid_forbidden_reads();
  // Global, because Open MPI's own plugins look for its symbols.
  const auto [entry, why] = load_module(path, kModuleEntry, true);
  if (!entry) {
    fail_user(
        "{} started {} ranks with {}, which cannot be loaded: {}. Install it (on Debian and Ubuntu: apt-get "
        "install {}), or start `--ranks {}` without {}: ranks as threads need no MPI",
        launch.by, launch.ranks, mpi.name, why, mpi.packages, launch.ranks, launch.by);
  }
  return *reinterpret_cast<ModuleEntry>(entry)();
}

}  // namespace shoal::mpi
