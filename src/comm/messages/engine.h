// One thread of the process that makes all its MPI calls: it moves the data of jobs that the rank has begun,
// also while the rank computes, and tells ranks of each other's failures.
//
// The end of a run: a rank that fails (its body throws, a collective's deadline passes, MPI fails) tells all
// others. For a moment ranks collect who else fails of itself, so that what all have run into is said once,
// and the lowest of those that had not heard of another reports. Then no rank makes an MPI call any more, so
// that its buffers are free.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "comm/messages/control.h"
#include "comm/messages/traffic.h"

namespace shoal::messages {

class Engine {
 public:
  // Returns when MPI is initialised on all ranks; throws Error when it fails.
  Engine(Transport& transport, double deadline_seconds);
  // After finish() or fail().
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The group of all ranks.
  std::shared_ptr<Group> world() const { return world_; }
  std::shared_ptr<Group> add_group(int id, std::vector<int> members);
  // The lowest id that no group of this rank has, or has had.
  int next_group_id() const { return next_group_id_; }
  int most_groups() const { return traffic_->most_groups(); }

  // Both throw StoppedByPeer when another rank has failed, and Error when this one has.
  void begin(const std::shared_ptr<Job>& job);
  void wait(Job& job);
  // Returns when the job's buffers are free, done or not. A rank that unwinds gives its jobs up after a
  // while, which ends the run.
  void settle(Job& job, bool unwinding) noexcept;

  double deadline_seconds() const { return deadline_seconds_; }
  // Some rank is known to have failed.
  bool stopping() const { return stopping_; }

  // The body has ended well on all ranks: ends MPI.
  void finish();

  // The body has ended with a failure: tells the others and returns whether this rank is the one that
  // reports.
  struct Verdict {
    bool report = false;
    bool same_everywhere = false;  // several ranks failed, with the same text
  };
  Verdict fail(const std::string& text);
  // The body has ended because another rank failed, which the others will hear of.
  Verdict stopped_by_peer();
  // Sleeps until the rank that reports has done it.
  void linger();

 private:
  enum class Phase : std::uint8_t { running, ending, stopped };
  struct Inquiry {  // after a deadline
    std::shared_ptr<Job> job;
    std::map<int, Note> answers;  // by world rank
    Stopwatch since;
  };

  // Of the engine's thread.
  void run();
  void loop();
  void take_new_jobs();
  void serve(const Note& note);
  void check_deadlines();
  void answer(const Note& ask);
  void conclude_inquiry();
  void start_ending();
  void fail_here(const std::string& text, bool known);
  void conclude();
  void await_end();
  void pause(bool moved);

  // With the mutex held.
  [[noreturn]] static void leave();
  void throw_if_stopped();
  void start_waiting(Job& job);
  bool await_stop(std::unique_lock<std::mutex>& lock);

  Transport& transport_;
  double deadline_seconds_;
  std::shared_ptr<Group> world_;
  std::unique_ptr<Traffic> traffic_;  // of the engine's thread, as are
  std::unique_ptr<Control> control_;
  std::vector<std::shared_ptr<Job>> open_;  // begun and not done
  std::optional<Inquiry> inquiry_;
  struct Failed {
    std::uint64_t text;  // a hash; 0 when unknown
    bool first;          // it had not heard of another
  };
  std::map<int, Failed> failed_;  // by world rank
  Stopwatch moved_since_, deadlines_checked_;

  std::mutex mutex_;
  std::condition_variable changed_;  // for the rank
  std::condition_variable wake_;     // for the engine
  bool kick_ = false;
  std::vector<std::shared_ptr<Job>> begun_;
  std::map<int, std::shared_ptr<Group>> groups_;
  int next_group_id_ = kFirstFreeGroup;
  bool started_ = false, closing_ = false, body_ended_ = false, ended_ = false;
  std::string start_error_;
  Phase phase_ = Phase::running;
  std::atomic<bool> stopping_ = false;                   // phase_ is another one
  std::optional<std::pair<std::string, bool>> failure_;  // of the rank, not yet told: its text, known or not
  std::string own_failure_;
  Verdict verdict_;
  Stopwatch heard_of_failure_;

  std::thread thread_;
};

}  // namespace shoal::messages
