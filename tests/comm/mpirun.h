// Starts programs under mpirun, with its output caught, and leaves no process behind.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace shoal::test {

enum class Mpi { open_mpi, mpich };

// The launcher's name. Ranks that it starts may leak: both MPIs do, which the address sanitizer takes for
// errors.
inline const char* mpirun_of(Mpi mpi) {
#ifdef __SANITIZE_ADDRESS__
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
#endif
  return mpi == Mpi::open_mpi ? "mpirun.openmpi" : "mpirun.mpich";
}
inline const char* module_of(Mpi mpi) {
  return mpi == Mpi::open_mpi ? "libshoal_mpi_openmpi.so" : "libshoal_mpi_mpich.so";
}

inline bool in_path(const std::string& program) {
  std::istringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(path, folder, ':');) {
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// Why this MPI cannot be tested with modules in `folder`; "" when it can.
inline std::string lacks(Mpi mpi, const std::filesystem::path& folder) {
  if (!in_path(mpirun_of(mpi))) return std::string("no ") + mpirun_of(mpi) + " on this machine";
  if (!std::filesystem::exists(folder / module_of(mpi)))
    return std::string(module_of(mpi)) + " was not built";
  return "";
}

// mpirun with its options for `ranks` ranks on this machine, which may be more than its cores.
inline std::vector<std::string> mpirun(Mpi mpi, int ranks) {
  std::vector<std::string> command{mpirun_of(mpi), "-n", std::to_string(ranks)};
  if (mpi == Mpi::open_mpi) {
    command.insert(command.end(), {"--oversubscribe", "--bind-to", "none"});
    if (::geteuid() == 0) command.push_back("--allow-run-as-root");
  }
  return command;
}

// MPICH's launcher, versions 4.1 to 4.2.2, sometimes exits with 0 although ranks failed
// (github.com/pmodels/mpich/issues/7057).
inline bool forgets_exit_codes(Mpi mpi) {
  if (mpi == Mpi::open_mpi) return false;
  std::FILE* version = ::popen("mpirun.mpich --version 2>/dev/null | grep -c 'Version: *4[.][12]'", "r");
  const int found = std::fgetc(version);
  ::pclose(version);
  return found == '1';
}

struct JobResult {
  int code = 0;  // 128 + signal when a signal ended it; -1 when it was killed after the time limit
  std::string out, err;
  double seconds = 0;
};

// A running command. All its processes are in its session, and killed with it.
class MpiJob {
 public:
  // `environment` adds "NAME=value" entries to the test's own.
  MpiJob(std::vector<std::string> command, const std::vector<std::string>& environment = {}) {
    std::string pattern = (std::filesystem::temp_directory_path() / "shoal-mpi-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setsid();
    redirect("out", STDOUT_FILENO);
    redirect("err", STDERR_FILENO);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    for (const auto& entry : environment) ::putenv(const_cast<char*>(entry.c_str()));
    std::vector<char*> argv;
    for (auto& argument : command) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ~MpiJob() {
    if (pid_ > 0) end();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  std::string out() const { return read("out"); }
  std::string err() const { return read("err"); }

  JobResult wait(double limit_seconds = 120) {
    int status = 0;
    for (;;) {
      if (::waitpid(pid_, &status, WNOHANG) == pid_) break;
      if (seconds() > limit_seconds) {
        end();
        return {-1, out(), err(), seconds()};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out(), err(), seconds()};
  }

  // Waits until the program has written `text` on standard output `times` times.
  bool await_output(const std::string& text, int times, double limit_seconds = 60) const {
    while (seconds() < limit_seconds) {
      int found = 0;
      const auto so_far = out();
      for (std::size_t at = so_far.find(text); at != std::string::npos; at = so_far.find(text, at + 1))
        ++found;
      if (found >= times) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  // SIGTERM lets mpirun end its ranks.
  void end() {
    ::kill(pid_, SIGTERM);
    for (int i = 0; i < 400 && ::waitpid(pid_, nullptr, WNOHANG) == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (i == 300) ::kill(pid_, SIGKILL);
    }
    pid_ = -1;
  }
  void redirect(const char* name, int to) const {
    ::dup2(::open((folder_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), to);
  }
  std::string read(const char* name) const {
    std::ifstream stream(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  std::filesystem::path folder_;
  pid_t pid_ = -1;
  Clock::time_point start_ = Clock::now();
};

}  // namespace shoal::test
