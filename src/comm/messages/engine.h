// The engine: one thread per process that makes all its MPI calls. It moves the data of pending operations
// while the rank computes, and exchanges failures between ranks.
//
// Failures: a rank that fails (its body throws, a deadline passes, MPI fails) informs all others. For half a
// second ranks collect further failures, so that an error on all ranks is reported once. The lowest rank that
// failed before it knew of another failure reports. After that no rank makes MPI calls, so all buffers are
// free.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "comm/messages/control_channel.h"
#include "comm/messages/piece_scheduler.h"

namespace shoal::messages {

class Engine {
 public:
  // Initialises MPI and returns when all ranks have done so. Throws Error when it fails.
  Engine(Transport& transport, double deadline_seconds);
  // Requires that finish() or fail() was called.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The group of all ranks.
  std::shared_ptr<Group> world() const { return world_; }
  std::shared_ptr<Group> add_group(int id, std::vector<int> members);
  // The lowest id that no group of this rank has used.
  int next_group_id() const { return next_group_id_; }
  int most_groups() const { return scheduler_->most_groups(); }

  // begin() and wait() throw StoppedByPeer when another rank has failed, and Error when this rank has failed.
  void begin(const std::shared_ptr<PendingOperation>& operation);
  void wait(PendingOperation& operation);
  // Returns when the operation's buffers are free, completed or not. While an exception unwinds, gives up
  // after a second, which ends the run.
  void release(PendingOperation& operation, bool unwinding) noexcept;

  double deadline_seconds() const { return deadline_seconds_; }
  // Whether a rank is known to have failed.
  bool stopping() const { return stopping_; }

  // Called when the body has succeeded on all ranks: ends MPI. Where that takes longer than `limit` seconds,
  // ends the process with `exit_code`.
  void finish(double limit, int exit_code);

  // Called when the body has failed and is about to unwind: informs the others, as fail() does later.
  void announce(std::string text) noexcept;
  // Called when the body has failed: informs the others and returns whether this rank reports the failure.
  struct Verdict {
    bool report = false;
    bool same_everywhere = false;  // several ranks failed, all with the same text
  };
  Verdict fail(const std::string& text);
  // Called when the body has ended because another rank failed.
  Verdict stopped_by_peer();
  // Sleeps until the reporting rank has reported.
  void await_report();

 private:
  enum class Phase : std::uint8_t { running, ending, stopped };
  struct DeadlineQuery {  // asks the other ranks how far they are, after a deadline has passed
    std::shared_ptr<PendingOperation> operation;
    std::map<int, ControlMessage> answers;  // by world rank
    Stopwatch since;
  };

  // Called by the engine's thread.
  void run();
  void loop();
  void take_new_operations();
  void handle(const ControlMessage& message);
  void check_deadlines();
  void reply(const ControlMessage& request);
  void finish_deadline_query();
  void start_ending();
  void announce_failure(const std::string& text, bool comparable);
  void decide_verdict();
  void await_end_of_body();
  void pause(bool moved);

  // Called with the mutex held.
  [[noreturn]] static void exit_without_mpi(double waited, int exit_code);
  void throw_if_stopped();
  void start_waiting(PendingOperation& operation);
  bool await_stop(std::unique_lock<std::mutex>& lock);

  Transport& transport_;
  double deadline_seconds_;
  std::shared_ptr<Group> world_;

  // Used by the engine's thread only.
  std::unique_ptr<PieceScheduler> scheduler_;
  std::unique_ptr<ControlChannel> control_;
  std::vector<std::shared_ptr<PendingOperation>> open_;  // started and not done
  std::optional<DeadlineQuery> deadline_query_;
  struct Failed {
    std::uint64_t text_hash;  // 0 where the text must not be compared
    bool first;               // the rank knew of no other failure when it failed
    bool body_ended;          // it will report as soon as it knows that it is to
  };
  std::map<int, Failed> failed_;  // by world rank
  Stopwatch last_progress_, deadlines_checked_;

  std::mutex mutex_;
  std::condition_variable changed_;  // wakes the rank
  std::condition_variable wake_;     // wakes the engine
  bool wake_requested_ = false;
  std::vector<std::shared_ptr<PendingOperation>> new_operations_;
  std::map<int, std::shared_ptr<Group>> groups_;
  int next_group_id_ = kFirstFreeGroup;
  bool started_ = false, closing_ = false, body_ended_ = false, ended_ = false;
  std::string start_error_;
  Phase phase_ = Phase::running;
  std::atomic<bool> stopping_ = false;  // phase_ is not running
  struct LocalFailure {
    std::string text;
    bool comparable;  // false: a consequence of this rank's unwinding, not to be compared with other ranks
  };
  std::optional<LocalFailure> failure_;  // of this rank, not yet announced
  std::string own_failure_;
  Verdict verdict_;
  double report_seconds_ = 0;  // after the first failure, within which the rank that reports has done so
  Stopwatch since_first_failure_;

  std::thread thread_;
};

}  // namespace shoal::messages
