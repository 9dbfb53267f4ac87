// Starts a child process, reads its output, and ends it with this process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/file.h"

namespace shoal {

// While an object of this class exists, SIGINT, SIGTERM and SIGHUP do not end this process;
// ChildProcess::wait_for_events() returns them instead. Those that were ignored before stay ignored.
class CaughtSignals {
 public:
  CaughtSignals();
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;
  int descriptor() const { return file_.get(); }
  // Waits at most `seconds` for a signal and returns it; 0: none came.
  int wait(double seconds) const;

 private:
  FileDescriptor file_;
};

// Output of a child, signals to this process and the end of the child, since the last call.
struct ProcessEvents {
  std::string out, err;  // new bytes of its standard output and standard error
  int signal = 0;        // signal sent to this process; 0: none
  bool ended = false;    // the child has ended, and there is no more output
};

// Exit code of a process, or the signal that ended it where it is not 0.
struct ExitStatus {
  int code = 0;
  int signal = 0;
};

// A child in a process group of its own, so that Ctrl-C does not reach it, with an empty standard input. It
// gets SIGTERM when this process dies. The destructor ends it.
class ChildProcess {
 public:
  // Starts arguments[0], found in PATH, with this process's environment and the "NAME=value" entries of
  // `environment`. Where it cannot be started, the child writes the reason to standard error and exits with
  // 127.
  explicit ChildProcess(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Waits at most `seconds` for output, a signal or the end of the child.
  ProcessEvents wait_for_events(double seconds, const CaughtSignals* signals = nullptr);
  // Sends SIGKILL to the child's whole group, other signals to the child only, which handles its own
  // children.
  void send(int signal) const;
  // Whether a process started by the child is still running.
  bool has_children() const;
  // Valid after the child has ended.
  ExitStatus end() const { return end_; }

 private:
  bool reap();

  pid_t pid_ = -1;
  FileDescriptor process_, out_, err_;
  ExitStatus end_;
};

}  // namespace shoal
