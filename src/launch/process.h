// A program that is started, listened to and never left behind.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/file.h"

namespace shoal {

// While it lives, SIGINT, SIGTERM and (but for nohup) SIGHUP end nothing, but are heard by those who listen
// to a Child.
class CaughtSignals {
 public:
  CaughtSignals();
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;
  int descriptor() const { return file_.get(); }

 private:
  FileDescriptor file_;
};

// What came from a child or from outside in a while.
struct Heard {
  std::string out, err;  // pieces of its standard output and standard error
  int signal = 0;        // that was sent to this process
  bool ended = false;    // and nothing more will come
};

// How a process ended: by exit code, or by a signal where that is not 0.
struct ChildEnd {
  int code = 0;
  int signal = 0;
};

// A process in a group of its own, so that Ctrl-C does not reach it, with nothing to read. When this process
// dies it gets SIGTERM; when the object goes it is ended too.
class Child {
 public:
  // The program is looked for in PATH; `environment` adds "NAME=value" entries to ours. One that cannot be
  // started says why and ends with code 127.
  explicit Child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits until there is something to be heard, at most so long.
  Heard hear(double seconds, const CaughtSignals* signals = nullptr);
  // SIGKILL goes to its whole group; others to it alone, which knows what to do about its own children.
  void send(int signal) const;
  // Whether any process that it started is still running.
  bool has_children() const;
  // After it has ended.
  ChildEnd end() const { return end_; }

 private:
  bool reap();

  pid_t pid_ = -1;
  FileDescriptor process_, out_, err_;
  ChildEnd end_;
};

}  // namespace shoal
