// Runs the threads of a simulation one at a time, on a virtual clock. A seed decides who runs next and for
// how long, so that the same seed gives the same order. Threads give way where they call the system
// (posix.cpp): at locks, waits, sleeps, files and messages.
//
// The system sees one thread only: each simulated thread has a stack of its own and the thread-local memory
// of a thread of the system, which sleeps meanwhile. So a switch costs a tenth of one by the system.
#pragma once

#include <pthread.h>
#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace shoal::simulate {

using Time = std::int64_t;  // nanoseconds of the virtual clock
inline constexpr Time kNever = INT64_MAX;
constexpr Time from_seconds(double seconds) { return static_cast<Time>(seconds * 1e9); }
constexpr double to_seconds(Time time) { return static_cast<double>(time) * 1e-9; }

// A seeded source of chance. (The distributions of <random> differ between libraries; seeds must not.)
class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}
  std::int64_t below(std::int64_t n) {  // in [0, n), n > 0
    return static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(n));
  }
  double share() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }  // in [0, 1)
  bool chance(double probability) { return share() < probability; }
  template <typename Values>
  const auto& pick(const Values& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(std::size(values))))];
  }

 private:
  std::mt19937_64 bits_;
};

// A process of the simulated job: a rank, or the launcher. Its threads share the memory of all, and die with
// it.
struct Process {
  int rank = -1;  // -1: the launcher
  int host = 0;
  Time frozen_until = 0;
  bool ended = false;  // its threads run no more
  bool killed = false;
  int exit_code = 0;
  std::string error;  // of its body
};

class Scheduler {
 public:
  // `stuck` is called, with a description of all threads, when none can ever run again or the clock passes
  // `limit`. It must not return.
  Scheduler(std::uint64_t seed, Time limit, std::function<void(const std::string&)> stuck);

  // The scheduler that the calling thread obeys; null on threads outside of a simulation.
  static Scheduler* current();

  // Makes the calling thread the first one, and calls `body`. Threads that others left behind never run
  // again.
  void run(Process& process, const std::function<void()>& body);
  // Starts `body` as the first thread of a process; when it returns, the process has ended.
  void start(Process& process, std::function<void()> body);
  // Ends a process at once: no destructor runs. Does not return where it is the caller's own.
  void end(Process& process, int exit_code);

  Time now() const { return now_; }
  Random& random() { return random_; }
  Process& process() const { return *running_->process; }

  // The parts of the system's calls.
  void pass(double probability = 0.25);  // another thread may run
  void tick() { now_ += kTick; }         // the clock is read
  // Until wake(); false when the deadline came first. As on a busy machine, the thread may run somewhat after
  // it.
  bool wait(const void* on, Time deadline = kNever);
  void sleep_until(Time time) { wait(nullptr, time); }
  void wake(const void* on, bool all = true);
  pthread_t create_thread(const pthread_attr_t* attributes, void* (*body)(void*), void* argument);
  void join(pthread_t handle);
  void locked(pthread_mutex_t* mutex) { running_->held.push_back(mutex); }
  void unlocked(pthread_mutex_t* mutex);

 private:
  static constexpr Time kTick = 8'000;

  struct Thread {
    enum class State : std::uint8_t { ready, waiting, ended };
    Process* process;
    int number;  // in the order of creation
    State state = State::ready;
    const void* on = nullptr;
    Time deadline = kNever;
    bool woken = false;
    bool joined = false;
    std::int64_t aside_until = 0;  // this many choices: until then it runs only when no other thread can
    pthread_t handle = {};
    void* locals = nullptr;  // where its thread-local memory is
    ucontext_t context = {};
    std::unique_ptr<std::byte[]> stack = {};
    std::atomic<int> lent = 0, over = 0;
    std::vector<pthread_mutex_t*> held = {};
    std::function<void()> body = {};
  };

  Thread& add_thread(Process& process, std::function<void()> body);
  void start_thread(Thread& thread, const pthread_attr_t* attributes);
  void live();  // a thread, from its first act to its last
  void switch_to(Thread& next);
  void switched();
  bool can_run(const Thread& thread) const;
  void put_aside(Thread& thread, double probability);
  Thread* choose();
  void switch_over();  // to whom choose() says, and back when it is this thread's turn again
  std::string describe() const;

  Random random_;
  Time now_ = 0, limit_;
  std::function<void(const std::string&)> stuck_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Thread*> able_;  // of choose()
  std::int64_t choices_ = 0;
  Thread* running_ = nullptr;
  Thread* left_ = nullptr;  // has ended, and its thread of the system may go once its stack is not in use
};

}  // namespace shoal::simulate
