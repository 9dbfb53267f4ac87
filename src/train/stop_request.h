// The signal that ends a run after its step, the same on all ranks.
#pragma once

#include "comm/communicator.h"
#include "core/interrupt.h"

namespace shoal {

class StopRequest {
 public:
  // "SIGINT", or null where nobody asked.
  const char* signal() const { return signal_; }
  explicit operator bool() const { return signal_ != nullptr; }

  // `counts`: InterruptGuard::counts() summed over the ranks.
  void hear(std::span<const double> counts) {
    if (!signal_) signal_ = InterruptGuard::requested(counts);
  }
  // Sums them now. Collective.
  void share(Communicator& ranks) {
    auto counts = InterruptGuard::counts();
    ranks.all_reduce({counts.data(), DType::f64, {std::ssize(counts)}}).wait();
    hear(counts);
  }

 private:
  const char* signal_ = nullptr;
};

}  // namespace shoal
