#include "core/interrupt.h"

#include <atomic>
#include <csignal>
#include <iterator>

#include "core/handler_print.h"

namespace shoal {
namespace {

// A signal handler may touch atomics without locks, and nothing else.
std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<int> guards = 0;
std::atomic<const char*> stop_message = nullptr;

constexpr int kRequests[] = {SIGINT, SIGTERM, SIGUSR1};
constexpr const char* kNames[] = {"SIGINT", "SIGTERM", "SIGUSR1"};
static_assert(std::size(kRequests) == InterruptGuard::kSignals);

extern "C" void on_signal(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

extern "C" void on_stop(int signal) {
  if (const char* message = stop_message) print_from_handler({"shoal: ", message});
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Leaves a signal ignored that is so, as a script's jobs in the background have SIGINT.
void handle(int signal, void (*handler)(int)) {
  if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
}

}  // namespace

void set_stop_message(const char* message) {
  stop_message = message;
  for (const int signal : {SIGINT, SIGTERM}) handle(signal, on_stop);
}

void clear_stop_message() { stop_message = nullptr; }

InterruptGuard::InterruptGuard() {
  if (guards++ > 0) return;
  for (const int signal : {SIGINT, SIGTERM}) handle(signal, on_signal);
  std::signal(SIGUSR1, on_signal);  // the last guard may have left it ignored
}

InterruptGuard::~InterruptGuard() {
  if (--guards > 0) return;
  clear_stop_message();
  for (const int signal : {SIGINT, SIGTERM}) handle(signal, SIG_DFL);
  std::signal(SIGUSR1, SIG_IGN);  // it asks a run to stop that has just done so
  received = 0;
}

const char* InterruptGuard::requested() { return requested(counts()); }

std::array<double, InterruptGuard::kSignals> InterruptGuard::counts() {
  std::array<double, kSignals> counts = {};
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = received == kRequests[i];
  return counts;
}

const char* InterruptGuard::requested(std::span<const double> counts) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) return kNames[i];
  }
  return nullptr;
}

int InterruptGuard::exit_code(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return 128 + kRequests[i];
  }
  return 1;
}

}  // namespace shoal
