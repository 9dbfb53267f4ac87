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
  const char* packages;        // Debian packages needed to run
  const char* build_packages;  // Debian packages needed to build the module
};

const Implementation& implementation(Launcher::Kind kind) {
  static constexpr Implementation kOpenMpi{"Open MPI", "libshoal_mpi_openmpi.so", "openmpi-bin",
                                           "libopenmpi-dev"};
  static constexpr Implementation kMpich{"MPICH", "libshoal_mpi_mpich.so", "mpich", "libmpich-dev"};
  return kind == Launcher::Kind::open_mpi ? kOpenMpi : kMpich;
}

// Returns "" where there is none.
std::string look_for_module(const Implementation& mpi) { return find_module(mpi.module, "SHOAL_MPI_MODULE"); }

std::string module_for(const Launcher& launch, const Implementation& mpi) {
  if (auto module = look_for_module(mpi); !module.empty()) return module;
  throw MpiUnavailable(fmt::format(
      "{} started {} ranks with {}, but this program was built without it: {} is {}; install {} and "
      "build again",
      launch.name, launch.ranks, mpi.name, mpi.module, module_folders(), mpi.build_packages));
}

// Open MPI's ranks on one host read each other's memory with process_vm_readv, which some containers forbid.
// Open MPI would notice only in the middle of a message. Settings of the user are kept.
void disable_forbidden_reads() {
  int from = 1, to = 0;
  const iovec source{&from, sizeof from}, target{&to, sizeof to};
  if (::process_vm_readv(::getpid(), &target, 1, &source, 1, 0) == sizeof from) return;
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);  // version 4
  ::setenv("OMPI_MCA_smsc", "^cma", 0);                             // version 5
}

}  // namespace

bool has_module(Launcher::Kind kind) { return !look_for_module(implementation(kind)).empty(); }

messages::Transport& load_transport(const Launcher& launch) {
  const auto& mpi = implementation(launch.kind);
  const auto path = module_for(launch, mpi);
  disable_forbidden_reads();
  // Symbols must be global, because Open MPI's plugins look them up.
  const auto [entry, why] = load_module(path, kModuleEntry, true);
  if (!entry) {
    throw MpiUnavailable(fmt::format(
        "{} started {} ranks with {}, which cannot be loaded: {}; install it (on Debian and Ubuntu: "
        "apt-get install {})",
        launch.name, launch.ranks, mpi.name, why, mpi.packages));
  }
  return *reinterpret_cast<ModuleEntry>(entry)();
}

}  // namespace shoal::mpi
