// An NCCL communicator and the stream of its collectives.
#pragma once

#include <functional>
#include <memory>

#include "comm/nccl/failure_detector.h"

namespace shoal::nccl {

class NcclGroup {
 public:
  // Starts to connect this member to the others; connect() waits until all are connected.
  NcclGroup(std::shared_ptr<FailureDetector> detector, const ncclUniqueId& id, int rank, int size,
            const Description& description);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  void connect(const Description& description);

  cudaStream_t stream() const { return stream_.get(); }
  DeviceScratch& scratch() { return scratch_; }

  // A call of one of NCCL's functions, which enqueues work on stream(). start_call() starts it, finish_call()
  // waits until NCCL has finished it on the host, call() does both.
  using Call = std::function<ncclResult_t(ncclComm_t)>;
  void start_call(const Description& description, const Call& function);
  void finish_call(const Description& description);
  void call(const Description& description, const Call& function) {
    start_call(description, function);
    finish_call(description);
  }

  // A collective: the work that `calls` enqueues on stream(), after all present work of the rank's own
  // stream.
  Request collective(Description description, const std::function<void(const Description&)>& calls);

 private:
  std::shared_ptr<FailureDetector> detector_;
  int exceptions_ = std::uncaught_exceptions();
  GpuStream stream_ = make_stream();
  DeviceScratch scratch_;
  ncclComm_t comm_ = nullptr;  // null after an abort; guarded by the detector's mutex
};

}  // namespace shoal::nccl
