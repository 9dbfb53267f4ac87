#include "simulate/scheduler.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "simulate/real.h"

namespace shoal::simulate {
namespace {

thread_local Scheduler* this_scheduler = nullptr;

constexpr Time kMostLate = from_seconds(8e-3);  // after the end of a sleep

void sleep_while(std::atomic<int>& word, int value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_one(std::atomic<int>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace

Scheduler* Scheduler::current() { return this_scheduler; }

Scheduler::Scheduler(std::uint64_t seed, Time limit, std::function<void(const std::string&)> stuck)
    : random_(seed), limit_(limit), stuck_(std::move(stuck)) {}

void Scheduler::Thread::await_baton() {
  while (baton.load(std::memory_order_acquire) == 0) sleep_while(baton, 0);
  baton.store(0, std::memory_order_relaxed);
}

void Scheduler::Thread::give_baton() {
  baton.store(1, std::memory_order_release);
  wake_one(baton);
}

Scheduler::Thread& Scheduler::add_thread(Process& process, std::function<void()> body) {
  const int number = static_cast<int>(threads_.size());
  auto& thread =
      *threads_.emplace_back(new Thread{.process = &process, .number = number, .body = std::move(body)});
  put_aside(thread, 0.3);
  return thread;
}

void Scheduler::run(Process& process, const std::function<void()>& body) {
  running_ = &add_thread(process, body);
  running_->handle = ::pthread_self();
  this_scheduler = this;
  body();
  this_scheduler = nullptr;
}

void Scheduler::start_thread(Thread& thread, const pthread_attr_t* attributes) {
  struct Start {
    Scheduler& scheduler;
    Thread& thread;
  };
  const auto enter = [](void* given) -> void* {
    const std::unique_ptr<Start> start(static_cast<Start*>(given));
    start->thread.await_baton();
    this_scheduler = &start->scheduler;
    start->thread.body();
    start->scheduler.end_thread();
    return nullptr;
  };
  real().pthread_create(&thread.handle, attributes, enter, new Start{*this, thread});
}

pthread_t Scheduler::create_thread(const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  auto& thread = add_thread(process(), [body, argument] { body(argument); });
  start_thread(thread, attributes);
  pass();
  return thread.handle;
}

void Scheduler::start(Process& process, std::function<void()> body) {
  start_thread(add_thread(process,
                          [this, &process, body = std::move(body)] {
                            body();
                            process.ended = true;
                            wake(&process);
                          }),
               nullptr);
}

// The thread's last act: the baton goes on, and the real thread ends.
void Scheduler::end_thread() {
  running_->state = Thread::State::ended;
  wake(running_);
  this_scheduler = nullptr;
  auto* next = choose();
  running_ = next;
  next->give_baton();
}

void Scheduler::end(Process& process, int exit_code) {
  if (process.ended) return;
  process.ended = true;
  process.exit_code = exit_code;
  // Locks that all simulated processes share only because they are one.
  for (auto& thread : threads_) {
    if (thread->process != &process) continue;
    for (auto* mutex : thread->held) {
      real().pthread_mutex_unlock(mutex);
      wake(mutex);
    }
    thread->held.clear();
  }
  wake(&process);
  if (running_->process == &process) switch_over();
}

void Scheduler::join(pthread_t handle) {
  const auto is_it = [&](const auto& thread) {
    return !thread->joined && ::pthread_equal(thread->handle, handle) != 0;
  };
  const auto found = std::ranges::find_if(threads_, is_it);
  if (found == threads_.end()) return;
  auto& thread = **found;
  while (thread.state != Thread::State::ended) wait(&thread);
  thread.joined = true;
}

void Scheduler::unlocked(pthread_mutex_t* mutex) {
  auto& held = running_->held;
  if (const auto found = std::ranges::find(held, mutex); found != held.end()) held.erase(found);
  wake(mutex);
}

void Scheduler::pass(double probability) {
  if (random_.chance(probability)) switch_over();
}

bool Scheduler::wait(const void* on, Time deadline) {
  auto& thread = *running_;
  thread.state = Thread::State::waiting;
  thread.on = on;
  const bool late = deadline != kNever && random_.chance(0.3);
  thread.deadline = late ? deadline + random_.below(kMostLate) : deadline;
  thread.woken = false;
  switch_over();
  return thread.woken;
}

void Scheduler::wake(const void* on, bool all) {
  std::vector<Thread*> waiting;
  for (auto& thread : threads_) {
    if (thread->state == Thread::State::waiting && thread->on == on && on) waiting.push_back(thread.get());
  }
  if (waiting.empty()) return;
  if (!all) waiting = {random_.pick(waiting)};
  for (auto* thread : waiting) {
    thread->state = Thread::State::ready;
    thread->woken = true;
  }
}

bool Scheduler::can_run(const Thread& thread) const {
  if (thread.process->ended || thread.process->frozen_until > now_) return false;
  if (thread.state == Thread::State::waiting) return thread.deadline <= now_;
  return thread.state == Thread::State::ready;
}

// Now and then a thread stands still while all the others go on for long: what it was to do in time comes too
// late where nobody waits for it.
void Scheduler::put_aside(Thread& thread, double probability) {
  constexpr double kMost = 5000;
  if (random_.chance(probability))
    thread.aside_until = choices_ + static_cast<std::int64_t>(std::pow(kMost, random_.share()));
}

Scheduler::Thread* Scheduler::choose() {
  while (true) {
    able_.clear();
    Time next = kNever;
    for (auto& thread : threads_) {
      if (can_run(*thread)) able_.push_back(thread.get());
      if (thread->process->ended || thread->state == Thread::State::ended) continue;
      const Time from = thread->state == Thread::State::ready ? 0 : thread->deadline;
      next = std::min(next, std::max(from, thread->process->frozen_until));
    }
    if (!able_.empty()) {
      const auto is_aside = [&](const Thread* thread) { return thread->aside_until > choices_; };
      if (!std::ranges::all_of(able_, is_aside)) std::erase_if(able_, is_aside);
      ++choices_;
      auto* chosen = random_.pick(able_);
      chosen->state = Thread::State::ready;
      return chosen;
    }
    if (next == kNever) stuck_("no thread can ever run again\n" + describe());
    now_ = std::max(now_, next);
    if (now_ > limit_) stuck_(fmt::format("not over after {:.0f} s\n{}", to_seconds(limit_), describe()));
  }
}

void Scheduler::switch_over() {
  auto* const me = running_;
  put_aside(*me, 0.002);
  auto* const next = choose();
  if (next == me) return;
  running_ = next;
  next->give_baton();
  me->await_baton();
}

std::string Scheduler::describe() const {
  std::string text;
  for (const auto& thread : threads_) {
    if (thread->state == Thread::State::ended) continue;
    text += fmt::format("  thread {} of rank {}: {}{}{}\n", thread->number, thread->process->rank,
                        thread->state == Thread::State::ready ? "ready" : "waiting",
                        thread->process->ended ? ", its process is dead" : "",
                        thread->process->frozen_until > now_ ? ", frozen" : "");
  }
  return text;
}

}  // namespace shoal::simulate
