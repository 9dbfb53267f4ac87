// Threads that no signal may interrupt.
#pragma once

#include <csignal>

namespace shoal {

// An object of this class keeps signals from its thread, and from threads that this one starts meanwhile:
// signals of other threads and processes arrive when the object ends. A signal that an instruction raises,
// such as SIGBUS, arrives as before.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int raised : {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) sigdelset(&blocked, raised);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace shoal
