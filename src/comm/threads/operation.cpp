#include "comm/threads/operation.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/arguments.h"
#include "comm/reduce.h"
#include "core/clock.h"

namespace shoal {
namespace {

// An operation of at most this size is run by the member that publishes last.
constexpr std::int64_t kInlineBytes = 32 << 10;

// A waiting member polls kPollsPerSpin times (about 1 us), then yields; after kSpins such rounds it sleeps.
// All rounds together take about as long as waking a thread.
constexpr int kPollsPerSpin = 50, kSpins = 40;

// A sleeping member checks at this interval whether the run has failed.
constexpr std::chrono::milliseconds kFailurePoll{20};

std::string_view name_of(Collective kind) {
  switch (kind) {
    case Collective::barrier:
      return "barrier";
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::broadcast:
      return "broadcast";
    case Collective::message:
      return "send and receive";
  }
  return "";
}

std::string describe(const Call& call, const std::string& purpose) {
  std::string text(name_of(call.kind));
  if (call.kind == Collective::all_reduce || call.kind == Collective::reduce_scatter) {
    text += fmt::format(" ({})", name_of(call.op));
  }
  if (call.kind == Collective::broadcast) text += fmt::format(" from its member {}", call.root);
  if (call.kind != Collective::barrier) text += fmt::format(" of {} {}", call.count, name_of(call.dtype));
  return purpose.empty() ? text : fmt::format("{} [{}]", text, purpose);
}

void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

Operation::Operation(ThreadsRun& run, const std::vector<int>& members, const Call& call, std::string purpose)
    : run_(run),
      members_(members),
      call_(call),
      purpose_(std::move(purpose)),
      xs_(members.size()),
      outs_(members.size()),
      published_(members.size()),
      cursors_(members.size()) {
  part_count_ = call.count;
  if (call.kind == Collective::reduce_scatter || call.kind == Collective::all_to_all) {
    parts_ = size();
    part_count_ = call.count / size();
  } else if (call.kind == Collective::all_gather) {
    parts_ = size();
  }
  chunk_count_ = kChunkBytes / static_cast<std::int64_t>(size_of(call.dtype));
  chunks_ = (part_count_ + chunk_count_ - 1) / chunk_count_;
  tasks_ = parts_ * chunks_;
  for (int segment = 0; segment < size(); ++segment) {
    cursors_[static_cast<std::size_t>(segment)].next = first_task(segment);
  }
}

std::string Operation::describe() const { return shoal::describe(call_, purpose_); }

bool Operation::publish(int member, Buffers buffers) {
  const auto m = static_cast<std::size_t>(member);
  xs_[m] = buffers.x;
  outs_[m] = buffers.out;
  published_[m] = true;
  return ++published_count_ == size();
}

void Operation::start(int member) {
  const auto bytes = parts_ * part_count_ * static_cast<std::int64_t>(size_of(call_.dtype));
  if (bytes <= kInlineBytes) work(member);
  ready_ = true;
  wake();
}

void Operation::work(int member) {
  ++workers_;
  std::int64_t finished = 0;
  for (int i = 0; i < size(); ++i) {
    const int segment = (member + i) % size();
    auto& next = cursors_[static_cast<std::size_t>(segment)].next;
    const auto end = first_task(segment + 1);
    while (!abandoned_ && next.load(std::memory_order_relaxed) < end) {
      const auto task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= end) break;
      run_task(task);
      ++finished;
    }
  }
  const bool last = finished > 0 && done_.fetch_add(finished) + finished == tasks_;
  --workers_;
  if (last) wake();
}

void Operation::run_task(std::int64_t task) {
  const auto part = task / chunks_;
  const auto first = task % chunks_ * chunk_count_;  // in the part
  const auto count = std::min(chunk_count_, part_count_ - first);
  const auto in_whole = part * part_count_ + first;
  const auto width = static_cast<std::int64_t>(size_of(call_.dtype));
  const auto copy_to = [&](std::size_t to, std::int64_t at, std::size_t from, std::int64_t from_at) {
    auto* out = outs_[to] + at * width;
    const auto* x = xs_[from] + from_at * width;
    if (out != x) std::memcpy(out, x, static_cast<std::size_t>(count * width));
  };
  const auto p = static_cast<std::size_t>(part);
  switch (call_.kind) {
    case Collective::barrier:
      break;
    case Collective::all_reduce:
      reduce(outs_, first, xs_, first, count, call_.dtype, call_.op);
      break;
    case Collective::reduce_scatter:
      reduce({&outs_[p], 1}, first, xs_, in_whole, count, call_.dtype, call_.op);
      break;
    case Collective::all_gather:
      for (std::size_t to = 0; to < outs_.size(); ++to) copy_to(to, in_whole, p, first);
      break;
    case Collective::all_to_all:
      for (std::size_t from = 0; from < xs_.size(); ++from) {
        copy_to(p, static_cast<std::int64_t>(from) * part_count_ + first, from, in_whole);
      }
      break;
    case Collective::broadcast:
      for (std::size_t to = 0; to < outs_.size(); ++to) {
        copy_to(to, first, static_cast<std::size_t>(call_.root), first);
      }
      break;
    case Collective::message:
      copy_to(1, first, 0, first);
      break;
  }
}

void Operation::wait(int member) {
  try {
    await([&] { return ready(); });
    work(member);
    await([&] { return done(); });
  } catch (...) {
    abandon();
    throw;
  }
}

void Operation::abandon() noexcept {
  if (done()) return;
  abandoned_ = true;
  wake();
  while (workers_ > 0) std::this_thread::yield();
}

// Polls for a while, then sleeps until `condition` holds.
template <typename Condition>
void Operation::await(const Condition& condition) {
  for (int spin = 0; spin < kSpins; ++spin) {
    for (int look = 0; look < kPollsPerSpin; ++look) {
      if (condition()) return;
      pause();
    }
    std::this_thread::yield();  // the awaited member may need this core
  }
  WaitWatch watch;
  std::unique_lock lock(mutex_);
  ++sleepers_;
  while (!condition()) {
    check(watch.seconds());
    changed_.wait_for(lock, kFailurePoll);
  }
  --sleepers_;
}

// Throws when the operation can no longer complete, or is past its deadline.
void Operation::check(double waited_seconds) {
  if (abandoned_) throw StoppedByPeer();
  run_.check();
  std::vector<int> missing, ended;
  for (std::size_t m = 0; m < published_.size(); ++m) {
    const bool has_ended = run_.ended(members_[m]);  // read first: a member may publish and then end
    if (published_[m]) continue;
    missing.push_back(members_[m]);
    if (has_ended) ended.push_back(members_[m]);
  }
  std::string why;
  if (!ended.empty()) {
    why = fmt::format("{}: {} ended without it", describe(), list_ranks(ended));
  } else if (!missing.empty() && waited_seconds >= run_.deadline_seconds()) {
    why =
        fmt::format("{} waited {} seconds for {}", describe(), run_.deadline_seconds(), list_ranks(missing));
  }
  if (why.empty()) return;
  run_.check();  // a rank may have ended because it failed
  run_.stop(why);
  throw Error(why);
}

void Operation::wake() {
  if (sleepers_ == 0) return;
  { const std::scoped_lock lock(mutex_); }  // no waiter is between its check and its sleep
  changed_.notify_all();
}

std::shared_ptr<Operation> OperationQueue::join(int member, const Call& call, Buffers buffers,
                                                const std::string& purpose) {
  std::unique_lock lock(mutex_);
  const auto index = static_cast<std::size_t>(joined_[static_cast<std::size_t>(member)]++ - first_);
  if (index == open_.size()) open_.push_back(std::make_shared<Operation>(run_, members_, call, purpose));
  auto operation = open_[index];
  if (operation->call() != call) {
    const auto why =
        fmt::format("{} where other ranks call {}", describe(call, purpose), operation->describe());
    run_.stop(why);
    throw Error(why);
  }
  const bool last = operation->publish(member, buffers);
  if (last) {
    open_.pop_front();  // the oldest: every member joins in order, so all earlier operations are complete
    ++first_;
  }
  lock.unlock();
  if (last) operation->start(member);
  return operation;
}

}  // namespace shoal
