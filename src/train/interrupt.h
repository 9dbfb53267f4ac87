// Ctrl-C and SIGTERM ask a run to stop after its step; a second one ends the process as usual. So does
// SIGUSR1, which Open MPI's mpirun passes on to its ranks, while it kills them on the others.
#pragma once

#include <array>
#include <span>

namespace shoal {

// In effect while any of them lives: each rank of a process has its own.
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
};

}  // namespace shoal
