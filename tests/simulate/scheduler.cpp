#include "simulate/scheduler.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __x86_64__
#include <asm/prctl.h>
#endif

#include <algorithm>
#include <cmath>
#include <utility>

#include "simulate/real.h"

namespace shoal::simulate {
namespace {

thread_local Scheduler* this_scheduler = nullptr;

constexpr Time kMostLate = from_seconds(8e-3);  // after the end of a sleep

// Not a semaphore, which asks for the time and gives way.
void await(std::atomic<int>& flag) {
  while (flag.load(std::memory_order_acquire) == 0)
    ::syscall(SYS_futex, &flag, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
}
void set(std::atomic<int>& flag) {
  flag.store(1, std::memory_order_release);
  ::syscall(SYS_futex, &flag, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

constexpr std::size_t kStackSize = 8 << 20;  // bytes, of which few are ever touched

// No library does this.
void set_thread_pointer(void* pointer) {
#ifdef __x86_64__
  ::syscall(SYS_arch_prctl, ARCH_SET_FS, pointer);
#else
  asm volatile("msr tpidr_el0, %0" : : "r"(pointer));
#endif
}

}  // namespace

Scheduler* Scheduler::current() { return this_scheduler; }

Scheduler::Scheduler(std::uint64_t seed, Time limit, std::function<void(const std::string&)> stuck)
    : random_(seed), limit_(limit), stuck_(std::move(stuck)) {}

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
  running_->locals = __builtin_thread_pointer();
  this_scheduler = this;
  body();
  this_scheduler = nullptr;
}

// The thread of the system only lends its memory, and ends when the simulated one has.
void Scheduler::start_thread(Thread& thread, const pthread_attr_t* attributes) {
  struct Loan {
    Scheduler& scheduler;
    Thread& borrower;
  };
  const auto lend = [](void* given) -> void* {
    const auto [scheduler, borrower] = *static_cast<Loan*>(given);
    this_scheduler = &scheduler;
    borrower.locals = __builtin_thread_pointer();
    set(borrower.lent);
    await(borrower.over);
    return nullptr;
  };
  Loan loan{*this, thread};
  real().pthread_create(&thread.handle, attributes, lend, &loan);
  await(thread.lent);
  thread.stack = std::make_unique_for_overwrite<std::byte[]>(kStackSize);
  ::getcontext(&thread.context);
  thread.context.uc_stack = {.ss_sp = thread.stack.get(), .ss_flags = 0, .ss_size = kStackSize};
  ::makecontext(
      &thread.context, [] { this_scheduler->live(); }, 0);
}

void Scheduler::live() {
  switched();
  running_->body();
  running_->state = Thread::State::ended;
  wake(running_);
  this_scheduler = nullptr;
  left_ = running_;
  switch_to(*choose());
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
  put_aside(*running_, 0.002);
  if (auto* const next = choose(); next != running_) switch_to(*next);
}

void Scheduler::switch_to(Thread& next) {
  auto& me = *std::exchange(running_, &next);
  set_thread_pointer(next.locals);
  ::swapcontext(&me.context, &next.context);
  switched();
}

// The first act of a thread after a switch.
void Scheduler::switched() {
  if (auto* const left = std::exchange(left_, nullptr)) set(left->over);
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
