// Waiting for other threads without the system.
#pragma once

namespace shoal {

// Looks whether `condition()` holds for about as long as waking a thread takes, and returns whether it came
// to hold. It does not yield: Linux lets a thread that yields wait for a whole time slice, and longer, when
// another program wants its core. A caller that polled in vain should sleep.
template <typename Condition>
bool poll(const Condition& condition) {
  constexpr int kLooks = 1000;  // 15 to 45 us
  for (int look = 0; look < kLooks; ++look) {
    if (condition()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");  // a hint to the processor, not to the system
#endif
  }
  return false;
}

}  // namespace shoal
