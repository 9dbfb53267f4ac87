#include "train/interrupt.h"

#include <atomic>
#include <csignal>

namespace shoal {
namespace {

// A signal handler may touch nothing else.
volatile std::sig_atomic_t received = 0;
std::atomic<int> guards = 0;

constexpr int kRequests[] = {SIGINT, SIGTERM, SIGUSR1};

extern "C" void on_signal(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  if (guards++ > 0) return;
  received = 0;
  for (const int signal : kRequests) std::signal(signal, on_signal);
}

InterruptGuard::~InterruptGuard() {
  if (--guards > 0) return;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  std::signal(SIGUSR1, SIG_IGN);  // it asks a run to stop that has just done so
}

const char* InterruptGuard::requested() {
  if (received == 0) return nullptr;
  return received == SIGINT ? "SIGINT" : received == SIGTERM ? "SIGTERM" : "SIGUSR1";
}

}  // namespace shoal
