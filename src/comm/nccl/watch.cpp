#include "comm/nccl/watch.h"

#include <algorithm>
#include <chrono>

#include "comm/arguments.h"
#include "core/error.h"

namespace shoal::nccl {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kLook{20};
// NCCL sees that a rank is gone before that rank has said why it has failed.
constexpr double kSaysWhy = 2;
// For communicators to end once all ranks have done their work.
constexpr double kFinish = 10;
constexpr microseconds kPause{20};

struct Settled {
  std::atomic<bool>& settling;
  ~Settled() { settling = false; }
};

}  // namespace

std::string Description::text() const {
  std::string text = what;
  if (op) text += fmt::format(" ({})", name_of(*op));
  if (count > 0) text += fmt::format(" of {} {}", count, name_of(dtype));
  return purpose.empty() ? text : fmt::format("{} [{}]", text, purpose);
}

Watch::Watch(Communicator& ranks, int device, cudaStream_t compute)
    : ranks_(ranks), device_(device), compute_(compute), thread_([this] { run(); }) {}

Watch::~Watch() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// The ranks' communicator knows what to throw where another one has failed.
void Watch::check() {
  const End how = end_;
  if (how == End::none) return;
  if (how == End::stopped) ranks_.barrier();
  if (how != End::failed) throw StoppedByPeer();
  const std::scoped_lock lock(mutex_);
  throw Error(why_);
}

void Watch::abandon() noexcept {
  const std::scoped_lock lock(mutex_);
  end(End::abandoned, "");
}

void Watch::add(std::shared_ptr<Job> job) {
  const std::scoped_lock lock(mutex_);
  jobs_.push_back(std::move(job));
}

void Watch::begin(ncclComm_t& comm, const Description& description, const Step& step) {
  check();
  ncclResult_t result = ncclSuccess;
  std::string why;
  {
    const std::scoped_lock lock(mutex_);
    if (end_ == End::none) {
      const bool first = !comm;
      result = step(comm);
      if (first && comm) comms_.push_back(&comm);
      if (result != ncclSuccess && result != ncclInProgress) why = text_of(result, comm);
    }
  }
  check();
  if (!why.empty()) fail_with(fmt::format("{}: {}", description.text(), why));
}

void Watch::settle(ncclComm_t& comm, const Description& description) {
  settling_ = true;
  const Settled settled{settling_};
  const Stopwatch since;
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
    if (since.seconds() > ranks_.deadline_seconds()) fail_with(overdue(description));
    std::this_thread::sleep_for(kPause);
  }
}

std::string Watch::overdue(const Description& description) const {
  const auto& others = *description.others;
  return fmt::format("{} waited {} seconds for {}{}", description.text(), ranks_.deadline_seconds(),
                     others.size() > 1 ? "one of " : "", list_ranks(others));
}

// Throws why, or as check() where another rank turns out to be the one that has failed.
void Watch::fail_with(const std::string& why) {
  for (const Stopwatch since; end_ == End::none && since.seconds() < kSaysWhy;) {
    std::this_thread::sleep_for(kLook);
  }
  {
    const std::scoped_lock lock(mutex_);
    end(End::failed, why);
  }
  check();
  throw Error(why);
}

// What others still need of it ends when they leave, too.
void Watch::leave(ncclComm_t& comm, bool unwinding) noexcept {
  std::unique_lock lock(mutex_);
  std::erase(comms_, &comm);
  if (!comm) return;
  ncclResult_t state = unwinding || end_ != End::none ? ncclInternalError : ncclCommFinalize(comm);
  for (const Stopwatch since; state == ncclInProgress && since.seconds() < kFinish && end_ == End::none;) {
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) state = ncclInternalError;
  }
  state == ncclSuccess ? ncclCommDestroy(comm) : ncclCommAbort(comm);
  comm = nullptr;
}

void Watch::run() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (end_ == End::none) look();
    wake_.wait_for(lock, kLook, [&] { return closing_; });
  }
}

void Watch::look() {
  if (ranks_.stopped()) return end(End::stopped, "");
  look_at_jobs();
  if (end_ == End::none && !settling_) look_at_communicators();
}

void Watch::look_at_jobs() {
  for (auto& job : jobs_) {
    const auto status = cudaEventQuery(job->done.get());
    if (status == cudaSuccess) {
      job = nullptr;
      continue;
    }
    const auto& description = job->description;
    if (status != cudaErrorNotReady) {
      return end(End::failed,
                 fmt::format("{}: the GPU failed: {}", description.text(), cudaGetErrorString(status)));
    }
    if (!job->awaited || cudaEventQuery(job->ready.get()) != cudaSuccess) continue;
    if (!job->waited) job->waited.emplace();
    if (job->waited->seconds() > ranks_.deadline_seconds()) return end(End::failed, overdue(description));
  }
  std::erase(jobs_, nullptr);
}

void Watch::look_at_communicators() {
  for (const auto* comm : comms_) {
    ncclResult_t state = ncclSuccess;
    if (const auto result = ncclCommGetAsyncError(*comm, &state); result != ncclSuccess) {
      state = result;
    }
    if (state == ncclSuccess || state == ncclInProgress) continue;
    if (!nccl_failed_) nccl_failed_.emplace();
    if (nccl_failed_->seconds() < kSaysWhy) return;
    const auto what = jobs_.empty() ? "between collectives" : jobs_.front()->description.text();
    return end(End::failed, fmt::format("{}: {}", what, text_of(state, *comm)));
  }
}

void Watch::end(End how, const std::string& why) noexcept {
  if (end_ != End::none) return;
  why_ = why;
  end_ = how;
  for (auto* comm : comms_) {
    ncclCommAbort(*comm);
    *comm = nullptr;
  }
  comms_.clear();
  jobs_.clear();
}

}  // namespace shoal::nccl
