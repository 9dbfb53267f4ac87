// Ctrl-C and SIGTERM ask a run to stop after its step; a second one ends the process as usual.
#pragma once

namespace shoal {

class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // "SIGINT", "SIGTERM", or null when nobody asked.
  static const char* requested();
};

}  // namespace shoal
