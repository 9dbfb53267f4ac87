// Ctrl-C and SIGTERM ask a run to stop after its step; a second one ends the process as usual. So does
// SIGUSR1, which Open MPI's mpirun passes on to its ranks, while it kills them on the others. Before a run,
// they end the process with a sentence. SIGINT and SIGTERM stay ignored where they were so when the process
// began.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace shoal {

// Before a guard is in effect, SIGINT and SIGTERM print "shoal: MESSAGE" on standard error and end the
// process as they usually do. The text must last as long as the process.
void set_stop_message(const char* message);
// From now on they print nothing: a failure is about to be reported. May be called by any thread.
void clear_stop_message();

// In effect while any of them lives: each rank of a process has its own. The last one clears the stop
// message, which says how a run ends that has not begun.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // "SIGINT", "SIGTERM", "SIGUSR1", or null when nobody asked.
  static const char* requested();

  // The same as numbers, one for each signal, which ranks add up; and what a sum of them says.
  static constexpr int kSignals = 3;
  static std::array<double, kSignals> counts();
  static const char* requested(std::span<const double> counts);

  // The exit code of a process that such a signal ends: 128 and its number.
  static int exit_code(std::string_view name);
};

}  // namespace shoal
