#include "train/interrupt.h"

#include <csignal>

namespace shoal {
namespace {

// A signal handler may touch nothing else.
volatile std::sig_atomic_t received = 0;

extern "C" void on_signal(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

const char* InterruptGuard::requested() {
  if (received == 0) return nullptr;
  return received == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace shoal
