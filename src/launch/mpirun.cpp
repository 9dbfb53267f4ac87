#include "launch/mpirun.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "comm/mpi/load.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/text.h"
#include "launch/process.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

std::string find_in_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? fs::absolute(name) : "";
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto file = (fs::path(folder) / name).string();
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

bool can_serve(MpiKind kind) {
  return mpi::has_module(kind == MpiKind::open_mpi ? Launcher::Kind::open_mpi : Launcher::Kind::mpich);
}

// Reads the kind from the output of --version.
std::optional<MpiKind> find_kind(const std::string& path, double limit) {
  ChildProcess child({path, "--version"});
  const Stopwatch watch;
  std::string said;
  for (bool ended = false; !ended;) {
    const auto events = child.wait_for_events(limit - watch.seconds());
    said += events.out + events.err;
    ended = events.ended;
    if (!ended && watch.seconds() >= limit) {
      fail_user("`{} --version` has not ended within {}; repair it, or name another with --mpirun PROGRAM",
                path, format_duration(limit));
    }
  }
  // Names such as mpirun.openmpi print "OpenRTE".
  for (const char* sign : {"Open MPI", "OpenRTE"}) {
    if (said.find(sign) != std::string::npos) return MpiKind::open_mpi;
  }
  if (said.find("HYDRA") != std::string::npos) return MpiKind::hydra;
  return std::nullopt;
}

// Environment variables that must reach the ranks on all hosts: ranks of which some lack one of NCCL's would
// wait for each other in vain.
bool is_for_ranks(std::string_view entry) {
  constexpr std::string_view kBeginnings[] = {"SHOAL_",          "OMP_",     "NCCL_", "CUDA_", "HF_",
                                              "XDG_CACHE_HOME=", "NO_COLOR="};
  return std::ranges::any_of(kBeginnings,
                             [&](std::string_view beginning) { return entry.starts_with(beginning); });
}

// Variables that the user has set are kept.
void add_defaults(std::vector<std::string>& environment,
                  std::initializer_list<std::pair<const char*, const char*>> values) {
  for (const auto& [name, value] : values) {
    if (!std::getenv(name)) environment.push_back(fmt::format("{}={}", name, value));
  }
}

std::vector<std::string> names_for_ranks() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (is_for_ranks(text)) names.push_back(text.substr(0, text.find('=')));
  }
  return names;
}

MpirunCall open_mpi_call(const Mpirun& mpirun, int ranks, const std::vector<Host>& hosts,
                         const std::string& remote_shell) {
  // No binding: each rank chooses its number of threads from the number of ranks on its host. The launcher of
  // version 4 reads OMPI_MCA_*, that of version 5 PRTE_MCA_*.
  MpirunCall call{
      .arguments = {mpirun.path, "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none"},
      .environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                      "OMPI_MCA_plm_rsh_agent=" + remote_shell, "PRTE_MCA_plm_ssh_agent=" + remote_shell},
      // On SIGTERM, mpirun itself kills the ranks a second later.
      .stop_signal = SIGUSR1};
  // Keep-alive finds a lost host within half a minute instead of minutes.
  add_defaults(call.environment, {{"OMPI_MCA_oob_tcp_keepalive_time", "10"},
                                  {"OMPI_MCA_oob_tcp_keepalive_intvl", "5"},
                                  {"OMPI_MCA_oob_tcp_keepalive_probes", "4"},
                                  {"PRTE_MCA_oob_tcp_keepalive_time", "10"},
                                  {"PRTE_MCA_oob_tcp_keepalive_intvl", "5"},
                                  {"PRTE_MCA_oob_tcp_keepalive_probes", "4"}});
  if (!hosts.empty()) call.arguments.insert(call.arguments.end(), {"--host", to_string(hosts)});
  for (const auto& name : names_for_ranks()) call.arguments.insert(call.arguments.end(), {"-x", name});
  return call;
}

MpirunCall hydra_call(const Mpirun& mpirun, int ranks, const std::vector<Host>& hosts,
                      const std::string& remote_shell) {
  MpirunCall call{
      .arguments = {mpirun.path, "-n", std::to_string(ranks)}, .environment = {}, .stop_signal = SIGTERM};
  if (!hosts.empty()) {
    const auto shell = find_in_path(remote_shell);
    if (shell.empty() && remote_shell.find(' ') != std::string::npos) {  // mpirun would hang
      fail_user("--remote-shell: MPICH takes one program, without arguments; put '{}' into a script",
                remote_shell);
    }
    call.arguments.insert(call.arguments.end(),
                          {"-hosts", to_string(hosts), "-launcher", "ssh", "-launcher-exec", shell});
  }
  return call;
}

}  // namespace

Mpirun find_mpirun(const std::string& wanted, double limit) {
  if (!wanted.empty()) {
    const auto path = find_in_path(wanted);
    if (path.empty()) fail_user("--mpirun: there is no program {}", wanted);
    const auto kind = find_kind(path, limit);
    if (!kind) fail_user("--mpirun: {} belongs to neither Open MPI nor MPICH", path);
    return {path, *kind};
  }
  std::string unfit;
  for (const char* name : {"mpirun.openmpi", "mpirun", "mpiexec.hydra", "mpirun.mpich", "mpiexec"}) {
    const auto path = find_in_path(name);
    if (path.empty()) continue;
    const auto kind = find_kind(path, limit);
    if (kind && can_serve(*kind)) return {path, *kind};
    if (unfit.empty()) unfit = path;
  }
  if (!unfit.empty()) {
    fail_user(
        "this program was built without the MPI that {} belongs to; install libopenmpi-dev or libmpich-dev "
        "and build again, or run ranks as threads: shoal train CONFIG --ranks N",
        unfit);
  }
  fail_user(
      "there is no mpirun on this machine; install Open MPI (Debian and Ubuntu: apt-get install openmpi-bin) "
      "or MPICH (apt-get install mpich), or run ranks as threads: shoal train CONFIG --ranks N");
}

MpirunCall mpirun_call(const Mpirun& mpirun, int ranks, const std::vector<Host>& hosts,
                       const std::string& remote_shell, const std::vector<std::string>& program) {
  auto call = mpirun.kind == MpiKind::open_mpi ? open_mpi_call(mpirun, ranks, hosts, remote_shell)
                                               : hydra_call(mpirun, ranks, hosts, remote_shell);
  call.arguments.insert(call.arguments.end(), program.begin(), program.end());
  return call;
}

}  // namespace shoal
