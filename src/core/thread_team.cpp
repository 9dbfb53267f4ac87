#include "core/thread_team.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/poll.h"

namespace shoal {
namespace {

constexpr std::uint64_t range(std::uint64_t first, std::uint64_t end) { return end << 32 | first; }

// Moves a thread, which keeps its set of cores: `narrow` leaves of them those that it is moved to. Does
// nothing while `moving` says that someone else does so, whose narrow set it could take for the one to keep.
template <typename Narrow>
void move(pid_t thread, std::atomic_flag& moving, const Narrow& narrow) {
  if (moving.test_and_set(std::memory_order_acquire)) return;
  cpu_set_t cores, target;
  if (sched_getaffinity(thread, sizeof cores, &cores) == 0) {
    target = cores;
    narrow(target);
    if (CPU_COUNT(&target) > 0 && sched_setaffinity(thread, sizeof target, &target) == 0)
      sched_setaffinity(thread, sizeof cores, &cores);
  }
  moving.clear(std::memory_order_release);
}

// Nanoseconds that a thread has run.
std::int64_t time_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

}  // namespace

void (*ThreadTeam::watch)(std::int64_t tasks, double seconds) = nullptr;

ThreadTeam::ThreadTeam(int size) : places_(static_cast<std::size_t>(std::max(size, 1))) {}

ThreadTeam::~ThreadTeam() {
  ended_.store(true, std::memory_order_relaxed);
  started_.add();
  started_.wake();
}

void ThreadTeam::start() {
  threads_.reserve(places_.size() - 1);
  for (int member = 1; member < size(); ++member) threads_.emplace_back([this, member] { work(member); });
}

void ThreadTeam::enter(int member) {
  auto& place = places_[static_cast<std::size_t>(member)];
  clockid_t clock{};
  if (pthread_getcpuclockid(pthread_self(), &clock) == 0) place.clock.store(clock, std::memory_order_relaxed);
  place.thread.store(gettid(), std::memory_order_relaxed);
}

void ThreadTeam::share(const Loop& loop) {
  if (loop.tasks >> 32) fail("a loop of {} tasks is too long for a team of threads", loop.tasks);
  if (threads_.empty()) start();
  if (const auto caller = std::this_thread::get_id(); caller != caller_) {
    caller_ = caller;
    enter(0);
  }
  loop_ = loop;
  done_.reset();
  const auto tasks = static_cast<std::uint64_t>(loop.tasks);
  for (std::size_t member = 0; member < places_.size(); ++member) {
    places_[member].left.store(range(tasks * member / places_.size(), tasks * (member + 1) / places_.size()),
                               std::memory_order_release);
  }
  started_.add();
  started_.wake();
  keep_apart();
  run_tasks(0);
  for (auto done = done_.value(); done < tasks;)
    done = done_.wait_for_change(done, [&] { help_late([&] { return done_.value() == tasks; }); });
  if (failed_.test(std::memory_order_relaxed)) {
    failed_.clear(std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

// Moves members from the caller's core to others. The system leaves a thread that wakes where it slept when
// no core is idle; behind the caller it would wait for a time slice in every loop, while the other program
// has a core alone.
void ThreadTeam::keep_apart() {
  const int here = sched_getcpu();
  for (auto& place : std::span(places_).subspan(1)) {
    if (place.core.load(std::memory_order_relaxed) != here) continue;
    place.core.store(-1, std::memory_order_relaxed);
    move(place.thread.load(std::memory_order_relaxed), moving_,
         [&](cpu_set_t& cores) { CPU_CLR(here, &cores); });
  }
}

// Brings a member that has a task but no core to this one, whose thread is about to sleep: the system would
// not, since the member's data are still in the other core's cache.
template <typename Condition>
void ThreadTeam::help_late(const Condition& over) {
  struct Late {
    Place* place = nullptr;
    std::int64_t time = 0;
  };
  const auto at_work = [](const Place& place) {
    return place.busy.load(std::memory_order_relaxed) || place.later.load(std::memory_order_relaxed);
  };
  std::array<Late, 4> late;
  std::size_t count = 0;
  for (auto& place : places_) {
    if (count < late.size() && at_work(place))
      late[count++] = {&place, time_of(place.clock.load(std::memory_order_relaxed))};
  }
  if (count == 0 || poll(over)) return;
  for (const auto& [place, time] : std::span(late).first(count)) {
    if (!at_work(*place)) continue;
    if (time_of(place->clock.load(std::memory_order_relaxed)) != time) continue;  // it runs
    const int here = sched_getcpu();
    return move(place->thread.load(std::memory_order_relaxed), moving_, [&](cpu_set_t& cores) {
      const bool allowed = CPU_ISSET(here, &cores);
      CPU_ZERO(&cores);
      if (allowed) CPU_SET(here, &cores);
    });
  }
}

void ThreadTeam::work(int member) {
  auto& place = places_[static_cast<std::size_t>(member)];
  enter(member);
  for (std::uint32_t started = 0;;) {
    started =
        started_.wait_for_change(started, [&] { help_late([&] { return started_.value() != started; }); });
    if (ended_.load(std::memory_order_relaxed)) return;
    place.core.store(sched_getcpu(), std::memory_order_relaxed);
    run_tasks(member);
    if (member + 1 == size()) work_up_to(asked_.load(std::memory_order_acquire), member);
  }
}

std::uint32_t ThreadTeam::later(std::int64_t tasks, std::function<void(std::int64_t task)> f) {
  if (size() == 1 || watch) {
    run(tasks, [&](std::int64_t task, int) { f(task); });
    return 0;
  }
  if (threads_.empty()) start();
  const std::uint32_t number = asked_.load(std::memory_order_relaxed) + 1;
  {
    const std::scoped_lock lock(works_lock_);
    works_.push_back({.number = number, .f = std::move(f), .tasks = tasks});
  }
  asked_.store(number, std::memory_order_release);
  started_.add();
  started_.wake();
  return number;
}

void ThreadTeam::finish(std::uint32_t number) {
  if (is_done(number)) return;
  run(size(), [&](std::int64_t, int member) { work_up_to(number, member); });
  for (auto ended = works_ended_.value(); !is_done(number);)
    ended = works_ended_.wait_for_change(ended, [&] { help_late([&] { return is_done(number); }); });
}

// Tasks begin in the order of the works; one that another member does may end later.
void ThreadTeam::work_up_to(std::uint32_t number, int member) {
  auto& place = places_[static_cast<std::size_t>(member)];
  std::unique_lock lock(works_lock_);
  while (true) {
    const auto next = std::ranges::find_if(works_, [](const Work& work) { return work.begun < work.tasks; });
    if (next == works_.end() || comes_after(next->number, number)) break;
    Work& work = *next;
    const std::int64_t task = work.begun++;
    lock.unlock();
    place.later.store(true, std::memory_order_relaxed);
    work.f(task);
    lock.lock();
    ++work.ended;
    while (!works_.empty() && works_.front().ended == works_.front().tasks) {
      works_.pop_front();
      works_ended_.add();
      works_ended_.wake();
    }
  }
  place.later.store(false, std::memory_order_relaxed);
}

// A claim is good for the loop that is under way then: its tasks are not all done, so the caller waits. The
// last task of a member that is at work is left to it for a while: its data would come from the member's
// cache and go back for the next loop, which takes longer than a small task where cores share no cache.
bool ThreadTeam::claim(int from, bool front, std::int64_t& task) {
  auto& place = places_[static_cast<std::size_t>(from)];
  auto& left = place.left;
  auto now = left.load(std::memory_order_acquire);
  while (true) {
    const std::uint64_t first = now & 0xffffffff, end = now >> 32;
    if (first == end) return false;
    if (!front && end - first == 1 && place.busy.load(std::memory_order_relaxed) &&
        poll([&] { return left.load(std::memory_order_relaxed) != now; })) {
      now = left.load(std::memory_order_acquire);
      continue;
    }
    const auto rest = front ? range(first + 1, end) : range(first, end - 1);
    if (left.compare_exchange_weak(now, rest, std::memory_order_acquire)) {
      task = static_cast<std::int64_t>(front ? first : end - 1);
      return true;
    }
  }
}

// A member counts its tasks as done once, when nothing is left to claim: the line of the count passes between
// cores, which takes as long as a small task where they share no cache.
void ThreadTeam::run_tasks(int member) {
  auto& busy = places_[static_cast<std::size_t>(member)].busy;
  std::uint32_t ended = 0, tasks = 0;
  for (int turn = 0; turn < size(); ++turn) {
    const int from = (member + turn) % size();
    for (std::int64_t task = 0; claim(from, turn == 0, task); ++ended) {
      if (ended == 0) {
        tasks = static_cast<std::uint32_t>(loop_.tasks);
        busy.store(true, std::memory_order_relaxed);
      }
      try {
        loop_.call(loop_.body, task, member);
      } catch (...) {
        if (!failed_.test_and_set(std::memory_order_relaxed)) failure_ = std::current_exception();
      }
    }
  }
  if (ended == 0) return;
  busy.store(false, std::memory_order_relaxed);
  if (done_.add(ended) == tasks) done_.wake();
}

}  // namespace shoal
