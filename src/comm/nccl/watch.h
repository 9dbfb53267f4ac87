// What all groups of a rank share: the GPU, and a thread that sees what goes wrong while the host waits for
// nothing.
//
// The end: a rank has failed (the ranks' communicator says so), a collective is past its deadline, NCCL or
// the GPU fails, or this rank unwinds. Then all of NCCL's communicators are aborted, so that their kernels
// end and whatever waits for the GPU goes on, and check() throws from then on.
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

// What a collective is, for messages.
struct Description {
  const char* what = "";
  std::optional<ReduceOp> op = {};
  std::int64_t count = 0;
  DType dtype = DType::f32;
  std::string purpose;
  std::shared_ptr<const std::vector<int>> others;  // that it needs, as ranks of the run

  std::string text() const;  // "all_reduce (sum) of 12 float32 [step 3, gradients of block.1]"
};

// A collective under way.
struct Job {
  Description description;
  GpuEvent ready = make_event();  // its tensors are there
  GpuEvent done = make_event();
  std::atomic<bool> awaited = false;
  std::optional<Stopwatch> waited;  // since it is ready and awaited. Of the watch's thread.
};

class Watch {
 public:
  // `ranks` outlives it.
  Watch(Communicator& ranks, int device, cudaStream_t compute);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  int device() const { return device_; }
  cudaStream_t compute() const { return compute_; }

  // By the rank's thread.
  void check();
  void abandon() noexcept;
  void add(std::shared_ptr<Job> job);

  // Calls on a communicator, which is null before it is made and after it has been aborted; the mutex of this
  // object guards it. begin() makes a call while nobody aborts; settle() returns when NCCL has finished the
  // call on the host. Both throw as check() does, and when NCCL fails. leave() destroys the communicator.
  using Step = std::function<ncclResult_t(ncclComm_t)>;
  void begin(ncclComm_t& comm, const Description& description, const Step& step);
  void settle(ncclComm_t& comm, const Description& description);
  void leave(ncclComm_t& comm, bool unwinding) noexcept;

 private:
  enum class End : std::uint8_t { none, stopped, failed, abandoned };

  void run();
  // With the mutex held.
  void look();
  void look_at_jobs();
  void look_at_communicators();
  void end(End how, const std::string& why) noexcept;

  std::string overdue(const Description& description) const;
  [[noreturn]] void fail_with(const std::string& why);

  Communicator& ranks_;
  int device_;
  cudaStream_t compute_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool closing_ = false;
  std::atomic<End> end_ = End::none;
  std::string why_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::vector<ncclComm_t*> comms_;
  std::optional<Stopwatch> nccl_failed_;
  std::atomic<bool> settling_ = false;  // the rank's thread sees itself what NCCL says
  std::thread thread_;
};

}  // namespace shoal::nccl
