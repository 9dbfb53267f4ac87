// One collective among threads. Members publish their buffers. When all have published, the collective is a
// list of tasks. Every member that waits claims tasks, and reads and writes the memory of the others. So each
// byte is copied once, without intermediate buffers, and a member that has published may go on computing
// without delaying the others.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>

#include "comm/communicator.h"
#include "comm/threads/run.h"

namespace shoal {

enum class Collective : std::uint8_t {
  barrier,
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  message
};

// The arguments of a call; all members must pass the same.
struct Call {
  Collective kind = Collective::barrier;
  DType dtype = DType::f32;
  std::int64_t count = 0;  // elements of x
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool operator==(const Call&) const = default;
};

// A member's memory. x is null for a receive, out for a send, both for a barrier.
struct Buffers {
  const std::byte* x = nullptr;
  std::byte* out = nullptr;
};

class Operation {
 public:
  static constexpr std::int64_t kChunkBytes = 64 << 10;  // of one member's buffer, per task

  // `members`: ranks in the run; must outlive the operation.
  Operation(ThreadsRun& run, const std::vector<int>& members, const Call& call, std::string purpose);

  const Call& call() const { return call_; }
  std::string describe() const;

  // Publishes the buffers of a member; returns true for the last member. The caller holds the queue's mutex.
  bool publish(int member, Buffers buffers);
  // Called by the member that published last: lets all members work. A small operation is done at once, since
  // waking the others would cost more.
  void start(int member);
  // Runs tasks and returns when all are done. Throws Error and StoppedByPeer. The buffers are free
  // afterwards.
  void wait(int member);
  // Cancels the operation unless it is done. When this returns, nobody uses the buffers.
  void abandon() noexcept;

  bool ready() const { return ready_.load(); }
  bool done() const { return done_.load(std::memory_order_acquire) == tasks_ && ready(); }

 private:
  struct alignas(64) Cursor {
    std::atomic<std::int64_t> next{0};
  };

  int size() const { return static_cast<int>(members_.size()); }
  std::int64_t first_task(int segment) const { return tasks_ * segment / size(); }
  void work(int member);
  void run_task(std::int64_t task);
  template <typename Condition>
  void await(const Condition& condition);
  void check(double waited_seconds);
  void wake();

  ThreadsRun& run_;
  const std::vector<int>& members_;
  Call call_;
  std::string purpose_;  // from the member that called first

  // The buffers are parts_ parts of part_count_ elements each, cut into chunks; a task is one chunk of one
  // part.
  int parts_ = 1;
  std::int64_t part_count_ = 0, chunk_count_ = 0, chunks_ = 0, tasks_ = 0;

  std::vector<const std::byte*> xs_;  // by member; so are outs_ and published_
  std::vector<std::byte*> outs_;
  std::vector<std::atomic<bool>> published_;
  int published_count_ = 0;

  // A member first runs the tasks of its own segment, whose data may still be in its cache from the last
  // call, then those of other segments.
  std::vector<Cursor> cursors_;
  std::atomic<std::int64_t> done_ = 0;  // tasks
  std::atomic<int> workers_ = 0;        // members inside work()
  std::atomic<bool> ready_ = false, abandoned_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_ = 0;
};

// The operations of a group, in call order, that not all members have joined yet.
class OperationQueue {
 public:
  OperationQueue(ThreadsRun& run, std::vector<int> members) : run_(run), members_(std::move(members)) {}

  const std::vector<int>& members() const { return members_; }

  // Joins the next operation of `member`. Throws Error when another member called with other arguments.
  std::shared_ptr<Operation> join(int member, const Call& call, Buffers buffers, const std::string& purpose);

 private:
  ThreadsRun& run_;
  std::vector<int> members_;
  std::mutex mutex_;
  std::vector<std::int64_t> joined_ = std::vector<std::int64_t>(members_.size());  // operations, by member
  std::int64_t first_ = 0;                                                         // of open_
  std::deque<std::shared_ptr<Operation>> open_;
};

}  // namespace shoal
