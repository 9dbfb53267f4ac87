// A thread that detects failures of NCCL's collectives, since the host does not wait for them. All groups of
// a rank share one detector.
//
// Failures are: another rank has failed (the communicator of all ranks reports it), a collective is past its
// deadline, NCCL or the GPU fails, or an exception unwinds on this rank. After a failure all NCCL
// communicators are aborted, so that their kernels end and streams continue, and check() throws from then on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/nccl/handles.h"
#include "core/clock.h"

namespace shoal::nccl {

// Describes a collective in error messages.
struct Description {
  const char* what = "";
  std::optional<ReduceOp> op = {};
  std::int64_t count = 0;
  DType dtype = DType::f32;
  std::string purpose;
  std::shared_ptr<const std::vector<int>> others;  // the other members, as ranks of the run

  std::string text() const;  // "all_reduce (sum) of 12 float32 [step 3, gradients of block.1]"
};

// A running collective.
struct NcclOperation {
  Description description;
  GpuEvent ready = make_event();  // its inputs are computed
  GpuEvent done = make_event();
  std::atomic<bool> awaited = false;
  std::optional<WaitWatch> waited;  // runs from when it is ready and awaited; for the detector's thread only
};

class FailureDetector {
 public:
  // `ranks` must outlive the detector. `compute` is the rank's own stream.
  FailureDetector(Communicator& ranks, int device, cudaStream_t compute);
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  int device() const { return device_; }
  cudaStream_t compute() const { return compute_; }

  // Called by the rank's thread. check() throws once a failure is known; abandon() aborts everything because
  // this rank has failed; add() registers a collective.
  void check();
  void abandon() noexcept;
  void add(std::shared_ptr<NcclOperation> operation);

  // Calls on an NCCL communicator. `comm` is null before its creation and after an abort; this object's mutex
  // guards it. start_call() calls a function of NCCL, never during an abort. finish_call() waits until NCCL
  // has finished the call on the host. Both throw as check() does, and Error when NCCL fails. destroy()
  // finalizes and destroys the communicator.
  using Call = std::function<ncclResult_t(ncclComm_t)>;
  void start_call(ncclComm_t& comm, const Description& description, const Call& function);
  void finish_call(ncclComm_t& comm, const Description& description);
  void destroy(ncclComm_t& comm, bool unwinding) noexcept;

 private:
  enum class StopReason : std::uint8_t { none, stopped, failed, abandoned };

  void run();
  // Called with the mutex held.
  void poll();
  void check_operations();
  void check_communicators();
  void stop(StopReason reason, const std::string& why) noexcept;

  std::string deadline_text(const Description& description) const;
  [[noreturn]] void fail_with(const std::string& why);

  Communicator& ranks_;
  int device_;
  cudaStream_t compute_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool closing_ = false;
  std::atomic<StopReason> stop_reason_ = StopReason::none;
  std::string why_;
  std::deque<std::shared_ptr<NcclOperation>> operations_;
  std::vector<ncclComm_t*> comms_;
  std::optional<Stopwatch> nccl_failed_;
  std::atomic<bool> finishing_call_ = false;  // while true, the rank's thread checks NCCL's errors itself
  std::thread thread_;
};

}  // namespace shoal::nccl
