#include "comm/nccl/failure_detector.h"

#include <algorithm>
#include <chrono>

#include "comm/arguments.h"
#include "core/error.h"

namespace shoal::nccl {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{20};
// Seconds to wait for another rank's failure: NCCL reports a lost rank before that rank has sent its reason.
constexpr double kReasonGrace = 2;
// Seconds that communicators get to finalize after all ranks have done their work.
constexpr double kFinish = 10;
constexpr microseconds kPause{20};

struct ClearAtEnd {
  std::atomic<bool>& flag;
  ~ClearAtEnd() { flag = false; }
};

}  // namespace

std::string Description::text() const {
  std::string text = what;
  if (op) text += fmt::format(" ({})", name_of(*op));
  if (count > 0) text += fmt::format(" of {} {}", count, name_of(dtype));
  return purpose.empty() ? text : fmt::format("{} [{}]", text, purpose);
}

FailureDetector::FailureDetector(Communicator& ranks, int device, cudaStream_t compute)
    : ranks_(ranks), device_(device), compute_(compute), thread_([this] { run(); }) {}

FailureDetector::~FailureDetector() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// ranks_.barrier() throws the right error when another rank has failed.
void FailureDetector::check() {
  const StopReason reason = stop_reason_;
  if (reason == StopReason::none) return;
  if (reason == StopReason::stopped) ranks_.barrier();
  if (reason != StopReason::failed) throw StoppedByPeer();
  const std::scoped_lock lock(mutex_);
  throw Error(why_);
}

void FailureDetector::abandon() noexcept {
  const std::scoped_lock lock(mutex_);
  stop(StopReason::abandoned, "");
}

void FailureDetector::add(std::shared_ptr<NcclOperation> operation) {
  const std::scoped_lock lock(mutex_);
  operations_.push_back(std::move(operation));
}

void FailureDetector::start_call(ncclComm_t& comm, const Description& description, const Call& function) {
  check();
  ncclResult_t result = ncclSuccess;
  std::string why;
  {
    const std::scoped_lock lock(mutex_);
    if (stop_reason_ == StopReason::none) {
      const bool first = !comm;
      result = function(comm);
      if (first && comm) comms_.push_back(&comm);
      if (result != ncclSuccess && result != ncclInProgress) why = text_of(result, comm);
    }
  }
  check();
  if (!why.empty()) fail_with(fmt::format("{}: {}", description.text(), why));
}

void FailureDetector::finish_call(ncclComm_t& comm, const Description& description) {
  finishing_call_ = true;
  const ClearAtEnd clear{finishing_call_};
  WaitWatch since;
  while (true) {
    ncclResult_t state = ncclSuccess;
    std::string why;
    check();
    {
      const std::scoped_lock lock(mutex_);
      if (comm) {
        const auto result = ncclCommGetAsyncError(comm, &state);
        if (result != ncclSuccess) state = result;
        if (state == ncclSuccess) return;
        if (state != ncclInProgress) why = text_of(state, comm);
      }
    }
    if (!why.empty()) fail_with(fmt::format("{}: {}", description.text(), why));
    if (since.seconds() > ranks_.deadline_seconds()) fail_with(deadline_text(description));
    std::this_thread::sleep_for(kPause);
  }
}

std::string FailureDetector::deadline_text(const Description& description) const {
  const auto& others = *description.others;
  return fmt::format("{} waited {} seconds for {}{}", description.text(), ranks_.deadline_seconds(),
                     others.size() > 1 ? "one of " : "", list_ranks(others));
}

// Throws Error(why), or as check() does where another rank turns out to have failed first.
void FailureDetector::fail_with(const std::string& why) {
  for (const Stopwatch since; stop_reason_ == StopReason::none && since.seconds() < kReasonGrace;) {
    std::this_thread::sleep_for(kPollInterval);
  }
  {
    const std::scoped_lock lock(mutex_);
    stop(StopReason::failed, why);
  }
  check();
  throw Error(why);
}

// ncclCommFinalize completes when all members have called it.
void FailureDetector::destroy(ncclComm_t& comm, bool unwinding) noexcept {
  std::unique_lock lock(mutex_);
  std::erase(comms_, &comm);
  if (!comm) return;
  ncclResult_t state =
      unwinding || stop_reason_ != StopReason::none ? ncclInternalError : ncclCommFinalize(comm);
  for (const Stopwatch since;
       state == ncclInProgress && since.seconds() < kFinish && stop_reason_ == StopReason::none;) {
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) state = ncclInternalError;
  }
  state == ncclSuccess ? ncclCommDestroy(comm) : ncclCommAbort(comm);
  comm = nullptr;
}

void FailureDetector::run() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (stop_reason_ == StopReason::none) poll();
    wake_.wait_for(lock, kPollInterval, [&] { return closing_; });
  }
}

void FailureDetector::poll() {
  if (ranks_.stopped()) return stop(StopReason::stopped, "");
  check_operations();
  if (stop_reason_ == StopReason::none && !finishing_call_) check_communicators();
}

void FailureDetector::check_operations() {
  for (auto& operation : operations_) {
    const auto status = cudaEventQuery(operation->done.get());
    if (status == cudaSuccess) {
      operation = nullptr;
      continue;
    }
    const auto& description = operation->description;
    if (status != cudaErrorNotReady) {
      return stop(StopReason::failed,
                  fmt::format("{}: the GPU failed: {}", description.text(), cudaGetErrorString(status)));
    }
    if (!operation->awaited || cudaEventQuery(operation->ready.get()) != cudaSuccess) continue;
    if (!operation->waited) operation->waited.emplace();
    if (operation->waited->seconds() > ranks_.deadline_seconds())
      return stop(StopReason::failed, deadline_text(description));
  }
  std::erase(operations_, nullptr);
}

void FailureDetector::check_communicators() {
  for (const auto* comm : comms_) {
    ncclResult_t state = ncclSuccess;
    if (const auto result = ncclCommGetAsyncError(*comm, &state); result != ncclSuccess) {
      state = result;
    }
    if (state == ncclSuccess || state == ncclInProgress) continue;
    if (!nccl_failed_) nccl_failed_.emplace();
    if (nccl_failed_->seconds() < kReasonGrace) return;
    const auto what = operations_.empty() ? "between collectives" : operations_.front()->description.text();
    return stop(StopReason::failed, fmt::format("{}: {}", what, text_of(state, *comm)));
  }
}

void FailureDetector::stop(StopReason reason, const std::string& why) noexcept {
  if (stop_reason_ != StopReason::none) return;
  why_ = why;
  stop_reason_ = reason;
  ncclGroupStart();  // all at once: each abort waits for the GPU, and so for the others' kernels
  for (auto* comm : comms_) {
    ncclCommAbort(*comm);
    *comm = nullptr;
  }
  ncclGroupEnd();
  comms_.clear();
  operations_.clear();
}

}  // namespace shoal::nccl
