// One collective among threads: the members publish their buffers, and once all have, the work is a list of
// tasks that any waiting member claims, reading and writing the others' memory. So a byte moves once, nothing
// is allocated for it, and a member that computes is not needed any more.
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

// What a member asks for; all members must ask for the same.
struct Call {
  Collective kind = Collective::barrier;
  DType dtype = DType::f32;
  std::int64_t count = 0;  // elements of x
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool operator==(const Call&) const = default;
};

// A member's memory; null where the call does not read or write it.
struct Buffers {
  const std::byte* x = nullptr;
  std::byte* out = nullptr;
};

class Operation {
 public:
  static constexpr std::int64_t kChunkBytes = 64 << 10;  // of one member's buffer, per task

  // `members`: their ranks in the run, which must live as long.
  Operation(ThreadsRun& run, const std::vector<int>& members, const Call& call, std::string purpose);

  const Call& call() const { return call_; }
  std::string describe() const;

  // Member `member` is there; not from two threads at once. True when it was the last one.
  bool publish(int member, Buffers buffers);
  // Once all are there: lets them work, and does it at once where that is less than waking somebody up.
  void start(int member);
  // Works, and returns when all is done; throws Error, StoppedByPeer. The buffers are free afterwards.
  void wait(int member);
  // Nobody touches the buffers any more, done or not.
  void leave() noexcept;

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
  std::string purpose_;  // of the member that came first

  // The buffers are `parts_` parts of part_count_ elements, cut into chunks; a task is a chunk of a part.
  int parts_ = 1;
  std::int64_t part_count_ = 0, chunk_count_ = 0, chunks_ = 0, tasks_ = 0;

  std::vector<const std::byte*> xs_;  // by member
  std::vector<std::byte*> outs_;
  std::vector<std::atomic<bool>> came_;
  int arrived_ = 0;

  // Every member first works on its own segment of the tasks, which it had in its cache the last time, then
  // on the others'.
  std::vector<Cursor> cursors_;
  std::atomic<std::int64_t> done_ = 0;  // tasks
  std::atomic<int> workers_ = 0;        // members inside work()
  std::atomic<bool> ready_ = false, cancelled_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_ = 0;
};

// The operations of some members, in their order. Keeps those that not all members have joined yet.
class Line {
 public:
  Line(ThreadsRun& run, std::vector<int> members) : run_(run), members_(std::move(members)) {}

  const std::vector<int>& members() const { return members_; }

  // Joins member's next operation. Throws Error when the others call something else.
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
