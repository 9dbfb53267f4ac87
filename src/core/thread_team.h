// Threads that share the tasks of a loop, and steal them from each other, for machines that other programs
// use too. OpenMP's loops end when every thread has come, so a thread that another program keeps from its
// core holds up all. Here a loop ends when its tasks are done, whoever did them; threads that wait sleep
// soon; and the team moves its threads between cores where the system, which does not know that one waits for
// another, would leave them.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/awaited_count.h"
#include "core/clock.h"

namespace shoal {

// One thread at a time starts loops; a task starts none.
class ThreadTeam {
 public:
  // The calling thread and size - 1 others, which start with the first loop.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(places_.size()); }

  // Calls f(task, member) once for every task in [0, tasks), from several threads at once: the caller is
  // member 0. Returns when all are done. Every member begins with its own part of the tasks, which is the
  // same one in every loop of so many tasks, since their data may still be in its core's cache. An exception
  // of f is thrown when the others are done.
  template <typename F>
  void run(std::int64_t tasks, F&& f) {
    if (!watch) return loop(tasks, f);
    const Stopwatch stopwatch;
    loop(tasks, f);
    watch(tasks, stopwatch.seconds());
  }

  // Work that loops need not wait for, as it waits for memory: the last member does it, task by task, while
  // the others go on with loops. Returns its number. `f` throws nothing. A team of one, or one that is
  // watched, has it done at once, as a loop.
  std::uint32_t later(std::int64_t tasks, std::function<void(std::int64_t task)> f);
  // Returns when all work up to this number is done; every member helps.
  void finish(std::uint32_t number);
  void finish() { finish(asked_.load(std::memory_order_relaxed)); }

  // Told of every loop that ended, where it is set: bench/many_cores.cpp counts them.
  static void (*watch)(std::int64_t tasks, double seconds);

 private:
  template <typename F>
  void loop(std::int64_t tasks, F& f) {
    if (tasks <= 1 || size() == 1) {
      for (std::int64_t task = 0; task < tasks; ++task) f(task, 0);
      return;
    }
    share({[](void* body, std::int64_t task, int member) { (*static_cast<F*>(body))(task, member); },
           const_cast<void*>(static_cast<const void*>(&f)), tasks});
  }

  struct Loop {
    void (*call)(void* body, std::int64_t task, int member) = nullptr;
    void* body = nullptr;
    std::int64_t tasks = 0;
  };
  // A member's tasks that nobody has claimed: the first in the lower half, the end in the upper one. The
  // member claims from the front, others from the back.
  struct alignas(64) Place {
    std::atomic<std::uint64_t> left{0};
    std::atomic<bool> busy{false};   // with tasks
    std::atomic<bool> later{false};  // with later work
    std::atomic<int> core{-1};       // where the member began its last loop
    std::atomic<pid_t> thread{0};
    std::atomic<clockid_t> clock{};  // the time that the thread has run
  };

  void share(const Loop& loop);
  void start();
  void enter(int member);
  void keep_apart();
  template <typename Condition>
  void help_late(const Condition& over);
  void work(int member);
  void run_tasks(int member);
  bool claim(int from, bool front, std::int64_t& task);

  struct Work {
    std::uint32_t number = 0;
    std::function<void(std::int64_t task)> f;
    std::int64_t tasks = 0, begun = 0, ended = 0;
  };
  // Numbers of works wrap around.
  static bool comes_after(std::uint32_t number, std::uint32_t other) {
    return static_cast<std::int32_t>(number - other) > 0;
  }
  bool is_done(std::uint32_t number) const { return !comes_after(number, works_ended_.value()); }
  void work_up_to(std::uint32_t number, int member);

  std::vector<Place> places_;
  // The caller writes the loop while no task is claimed; a member reads it after a claim.
  Loop loop_;
  std::atomic_flag failed_;
  std::exception_ptr failure_;
  alignas(64) AwaitedCount started_;  // loops, and the end
  std::atomic<bool> ended_{false};
  std::atomic_flag moving_;        // a thread is moved: one at a time
  alignas(64) AwaitedCount done_;  // tasks of this loop
  std::thread::id caller_;
  std::atomic<std::uint32_t> asked_{0};  // the number of the last work
  std::mutex works_lock_;
  std::deque<Work> works_;    // that are not done, in the order of their numbers
  AwaitedCount works_ended_;  // the number up to which all are done
  std::vector<std::jthread> threads_;
};

}  // namespace shoal
