#include "launch/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"

namespace shoal {
namespace {

// SIGINT, SIGTERM, SIGHUP and SIGUSR1 without those that were ignored when the process began: they stay so.
// nohup ignores SIGHUP, and a script's jobs in the background have SIGINT ignored.
const sigset_t& caught() {
  static const sigset_t set = [] {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
      struct sigaction before {};
      ::sigaction(signal, nullptr, &before);
      if (before.sa_handler != SIG_IGN) ::sigaddset(&signals, signal);
    }
    return signals;
  }();
  return set;
}

struct Pipe {
  FileDescriptor read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail("cannot make a pipe: {}", std::strerror(errno));
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// This process's environment, with `entries` replacing variables of the same name.
std::vector<std::string> environment_with(const std::vector<std::string>& entries) {
  std::vector<std::string> result = entries;
  for (char** ours = environ; *ours != nullptr; ++ours) {
    const std::string entry = *ours;
    const auto name = entry.substr(0, entry.find('=') + 1);
    const auto same = [&](const std::string& given) { return given.starts_with(name); };
    if (std::none_of(entries.begin(), entries.end(), same)) result.push_back(entry);
  }
  return result;
}

// Reads all available bytes; closes the file at its end.
void drain(FileDescriptor& file, std::string& to) {
  std::array<char, 1 << 16> buffer;
  while (file.get() >= 0) {
    const auto count = ::read(file.get(), buffer.data(), buffer.size());
    if (count > 0) {
      to.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0) {
      file = FileDescriptor();
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

CaughtSignals::CaughtSignals() {
  const auto& set = caught();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  file_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

CaughtSignals::~CaughtSignals() { ::sigprocmask(SIG_UNBLOCK, &caught(), nullptr); }

int CaughtSignals::wait(double seconds) const {
  pollfd file{file_.get(), POLLIN, 0};
  ::poll(&file, 1, static_cast<int>(1e3 * std::clamp(seconds, 0.0, 1e6)));
  signalfd_siginfo info{};
  return ::read(file_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

ChildProcess::ChildProcess(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment) {
  Pipe out, err;
  const auto entries = environment_with(environment);
  const auto argv = pointers(arguments), envp = pointers(entries);
  const auto& signals = caught();
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail("cannot start {}: {}", arguments.front(), std::strerror(errno));
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);  // the parent died before prctl
    ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out.write.get(), STDOUT_FILENO);
    ::dup2(err.write.get(), STDERR_FILENO);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::dprintf(STDERR_FILENO, "cannot start %s: %s\n", argv[0], std::strerror(errno));
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
  process_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  out_ = std::move(out.read);
  err_ = std::move(err.read);
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  send(SIGTERM);
  pollfd process{process_.get(), POLLIN, 0};
  ::poll(&process, 1, 5000);
  send(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::send(int signal) const {
  if (pid_ > 0) ::kill(signal == SIGKILL ? -pid_ : pid_, signal);
}

bool ChildProcess::has_children() const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    // "PID (NAME) STATE PARENT ..."; NAME may contain any character.
    std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    char state = 0;
    pid_t parent = 0;
    if (rest >> state >> parent && parent == pid_ && state != 'Z') return true;
  }
  return false;
}

bool ChildProcess::reap() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return pid_ < 0;
  if (WIFSIGNALED(status)) end_.signal = WTERMSIG(status);
  if (WIFEXITED(status)) end_.code = WEXITSTATUS(status);
  ::kill(-pid_, SIGKILL);  // remaining processes of its group
  pid_ = -1;
  return true;
}

ProcessEvents ChildProcess::wait_for_events(double seconds, const CaughtSignals* signals) {
  // poll ignores -1, the descriptor of a closed pipe.
  std::array<pollfd, 4> files{{{out_.get(), POLLIN, 0},
                               {err_.get(), POLLIN, 0},
                               {process_.get(), POLLIN, 0},
                               {signals ? signals->descriptor() : -1, POLLIN, 0}}};
  ::poll(files.data(), files.size(), static_cast<int>(1e3 * std::clamp(seconds, 0.0, 1e6)));
  ProcessEvents events;
  if (signals) events.signal = signals->wait(0);
  events.ended = reap();  // before draining, so that the last output is already in the pipes
  drain(out_, events.out);
  drain(err_, events.err);
  return events;
}

}  // namespace shoal
