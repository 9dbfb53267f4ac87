#include "comm/launcher.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "core/hash.h"
#include "core/host.h"

namespace shoal {
namespace {

int number(const char* text, int otherwise) {
  int value = otherwise;
  if (text) std::from_chars(text, text + std::strlen(text), value);
  return value;
}

}  // namespace

// Open MPI's mpirun sets OMPI_COMM_WORLD_*. srun with PMIx also starts Open MPI; it sets PMIX_RANK. MPICH's
// mpirun and srun with PMI-2 set PMI_*; only MPICH's mpirun sets MPI_LOCALRANKID. In a Slurm job SLURM_* are
// always set.
Launcher detect_launcher(const Environment& environment) {
  const auto value = [&](const char* name, int otherwise) { return number(environment(name), otherwise); };
  const int slurm_ranks = environment("SLURM_STEP_ID") ? value("SLURM_STEP_NUM_TASKS", 1) : 1;
  if (environment("OMPI_COMM_WORLD_SIZE")) {
    return {Launcher::Kind::open_mpi, value("OMPI_COMM_WORLD_RANK", 0), value("OMPI_COMM_WORLD_SIZE", 1),
            "mpirun"};
  }
  if (environment("PMI_RANK")) {
    const bool srun = environment("SLURM_STEP_ID") && !environment("MPI_LOCALRANKID");
    return {Launcher::Kind::mpich, value("PMI_RANK", 0), value("PMI_SIZE", slurm_ranks),
            srun ? "srun" : "mpirun"};
  }
  if (environment("PMIX_RANK")) {
    return {Launcher::Kind::open_mpi, value("PMIX_RANK", 0), slurm_ranks, slurm_ranks > 1 ? "srun" : "PMIx"};
  }
  if (slurm_ranks > 1) {  // without an --mpi option
    return {Launcher::Kind::alone, 0, 1, "", value("SLURM_PROCID", 0), slurm_ranks};
  }
  return {Launcher::Kind::alone, 0, 1, ""};
}

Launcher detect_launcher() {
  return detect_launcher([](const char* name) { return std::getenv(name); });
}

// Hosts may share a name ("localhost"), and containers of one host share a boot id; together they are unique.
std::uint64_t host_hash() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  const std::string boot{std::istreambuf_iterator<char>(file), {}};
  return fnv1a(host_name() + boot);
}

LocalShare local_share(std::span<const CoreBinding> ranks, int rank) {
  const auto& mine = ranks[static_cast<std::size_t>(rank)];
  LocalShare share{0, 0, 0, 0};
  std::set<std::uint64_t> hosts;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    hosts.insert(ranks[other].host);
    if (ranks[other].host != mine.host) continue;
    if (other < static_cast<std::size_t>(rank)) ++share.local_rank;
    ++share.local_size;
    if (ranks[other].cores == mine.cores) ++share.sharing;
  }
  share.hosts = static_cast<int>(hosts.size());
  return share;
}

}  // namespace shoal
