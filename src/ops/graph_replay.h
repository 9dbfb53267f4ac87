// Captures the work of the second call and replays it afterwards, where the device can. The first call runs
// as it is: it allocates memory and chooses algorithms.
#pragma once

#include "core/error.h"
#include "ops/device.h"

namespace shoal {

class GraphReplay {
 public:
  // Without `capture`, every call runs as the first one.
  GraphReplay(Device& device, bool capture) : device_(device), captures_(capture && device.can_capture()) {}

  bool captures() const { return captures_; }

  // `work` launches the same kernels on the same tensors in every call.
  template <typename Work>
  void operator()(const Work& work) {
    if (!captures_ || !called_) {
      work();
      called_ = true;
      return;
    }
    if (!graph_) graph_ = capture(work);
    graph_->replay();
  }

 private:
  template <typename Work>
  std::unique_ptr<CapturedGraph> capture(const Work& work) {
    device_.begin_capture();
    try {
      work();
    } catch (...) {
      try {
        device_.end_capture();
      } catch (const Error&) {  // the capture is incomplete: the first error says more
      }
      throw;
    }
    return device_.end_capture();
  }

  Device& device_;
  bool captures_, called_ = false;
  std::unique_ptr<CapturedGraph> graph_;
};

}  // namespace shoal
