// A communicator of NCCL, with a stream that its collectives go over.
#pragma once

#include <functional>
#include <memory>

#include "comm/nccl/watch.h"

namespace shoal::nccl {

class Clique {
 public:
  // This member's side; begins to connect to the others, and connect() waits for them.
  Clique(std::shared_ptr<Watch> watch, const ncclUniqueId& id, int rank, int size,
         const Description& description);
  ~Clique();
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;
  void connect(const Description& description);

  cudaStream_t stream() const { return stream_.get(); }
  Scratch& scratch() { return scratch_; }

  // What one of NCCL's functions is given to do. Every step is called with the communicator and ends behind
  // the one before it on the stream.
  using Step = std::function<ncclResult_t(ncclComm_t)>;
  void begin(const Description& description, const Step& step);
  void settle(const Description& description);
  void step(const Description& description, const Step& step) {
    begin(description, step);
    settle(description);
  }

  // A collective: what `steps` puts on the stream, behind all that the rank's own stream has so far.
  Request collective(Description description, const std::function<void(const Description&)>& steps);

 private:
  std::shared_ptr<Watch> watch_;
  int exceptions_ = std::uncaught_exceptions();
  GpuStream stream_ = make_stream();
  Scratch scratch_;
  ncclComm_t comm_ = nullptr;  // null when it has been aborted. With the watch's mutex.
};

}  // namespace shoal::nccl
