#include "core/awaited_count.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>

namespace shoal {

void AwaitedCount::wake() {
  if (sleepers_.load() == 0) return;
  ::syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

std::uint32_t AwaitedCount::sleep(std::uint32_t old) {
  sleepers_.fetch_add(1);  // before the system's look at the value, as add() comes before wake()'s look here
  while (value() == old) ::syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1);
  return value();
}

}  // namespace shoal
