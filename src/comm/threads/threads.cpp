// Ranks as threads of one process, which read and write each other's memory (comm/threads/operation.h).
#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <typeinfo>

#include "comm/arguments.h"
#include "comm/failure.h"
#include "comm/threads/operation.h"
#include "comm/world.h"
#include "core/cores.h"
#include "core/log.h"
#include "core/process_limits.h"

namespace shoal {
namespace {

// The state that the members of a group share: the queues of their operations.
class ThreadsGroup {
 public:
  ThreadsGroup(ThreadsRun& run, std::vector<int> members)
      : run_(run), collectives_(run, std::move(members)) {}

  ThreadsRun& run() { return run_; }
  const std::vector<int>& members() const { return collectives_.members(); }
  OperationQueue& collectives() { return collectives_; }

  // The messages from one rank to another: member 0 of the queue sends, member 1 receives.
  OperationQueue& messages(int from, int to) {
    const std::scoped_lock lock(mutex_);
    const auto member = [&](int rank) { return members()[static_cast<std::size_t>(rank)]; };
    return messages_.try_emplace({from, to}, run_, std::vector{member(from), member(to)}).first->second;
  }

  // The group of `members` (ranks of this group) that split number `number` gives. The first caller creates
  // it.
  std::shared_ptr<ThreadsGroup> part(std::int64_t number, const std::vector<int>& members) {
    const std::scoped_lock lock(mutex_);
    auto& part = parts_[{number, members.front()}];
    if (!part.group) {
      std::vector<int> ranks;
      for (int member : members) ranks.push_back(collectives_.members()[static_cast<std::size_t>(member)]);
      part.group = std::make_shared<ThreadsGroup>(run_, std::move(ranks));
    }
    auto group = part.group;
    if (++part.taken == members.size()) parts_.erase({number, members.front()});
    return group;
  }

 private:
  struct Part {
    std::shared_ptr<ThreadsGroup> group;
    std::size_t taken = 0;  // members that have asked for it
  };

  ThreadsRun& run_;
  OperationQueue collectives_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, OperationQueue> messages_;  // from, to
  std::map<std::pair<std::int64_t, int>, Part> parts_;      // number of the split, first member
};

// A member's handle of an operation.
class OperationRequest final : public Request::Pending {
 public:
  explicit OperationRequest(std::shared_ptr<ThreadsGroup> group) : group_(std::move(group)) {}
  OperationRequest(const OperationRequest&) = delete;
  OperationRequest& operator=(const OperationRequest&) = delete;

  // Waits. While an exception unwinds, waits only for an operation that all members have joined, and else
  // ends the run.
  ~OperationRequest() override {
    if (!operation_ || operation_->done()) return;
    if (std::uncaught_exceptions() > exceptions_ && !operation_->ready()) {
      group_->run().stop(fmt::format("a rank gave up {}", operation_->describe()));
      operation_->abandon();
      return;
    }
    try {
      operation_->wait(member_);
    } catch (const std::exception&) {  // the run has been stopped, and keeps the reason
    }
  }

  bool join(OperationQueue& queue, int member, const Call& call, Buffers buffers,
            const std::string& purpose) {
    member_ = member;
    operation_ = queue.join(member, call, buffers, purpose);
    return operation_->done();
  }

  void wait() override { std::exchange(operation_, nullptr)->wait(member_); }

 private:
  std::shared_ptr<ThreadsGroup> group_;
  std::shared_ptr<Operation> operation_;
  int member_ = 0;
  int exceptions_ = std::uncaught_exceptions();
};

class ThreadsCommunicator final : public Communicator {
 public:
  ThreadsCommunicator(std::shared_ptr<ThreadsGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->members().size()); }

  Request all_reduce(const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    return call({Collective::all_reduce, x.dtype, x.count(), op}, x, x);
  }

  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    check_parts("reduce_scatter", x, out, size());
    return call({Collective::reduce_scatter, x.dtype, x.count(), op}, x, out);
  }

  Request all_gather(const Tensor& out, const Tensor& x) override {
    check_parts("all_gather", out, x, size());
    return call({Collective::all_gather, x.dtype, x.count()}, x, out);
  }

  Request all_to_all(const Tensor& out, const Tensor& x) override {
    check_all_to_all(out, x, size());
    return call({Collective::all_to_all, x.dtype, x.count()}, x, out);
  }

  Request broadcast(const Tensor& x, int root) override {
    check_root(root, size());
    return call({Collective::broadcast, x.dtype, x.count(), ReduceOp::sum, root}, x, x);
  }

  Request send(const Tensor& x, int to) override {
    check_peer("send to", to, rank_, size());
    return call({Collective::message, x.dtype, x.count()}, x, {}, group_->messages(rank_, to), 0);
  }

  Request receive(const Tensor& x, int from) override {
    check_peer("receive from", from, rank_, size());
    return call({Collective::message, x.dtype, x.count()}, {}, x, group_->messages(from, rank_), 1);
  }

  void barrier() override { call({Collective::barrier}, {}, {}).wait(); }

  void abandon() noexcept override {
    if (const auto text = handled_failure(); !text.empty()) group_->run().stop(text);
  }
  bool stopped() const override { return group_->run().stopped(); }
  double deadline_seconds() const override { return group_->run().deadline_seconds(); }

  std::unique_ptr<Communicator> split(const SplitKeys& keys) override {
    group_->run().check();
    const auto members = members_of(keys, size(), rank_);
    const auto number = splits_++;
    if (members.size() == 1) return make_self_communicator();
    const auto me = std::find(members.begin(), members.end(), rank_) - members.begin();
    return std::make_unique<ThreadsCommunicator>(group_->part(number, members), static_cast<int>(me));
  }

 private:
  Request call(const Call& call, const Tensor& x, const Tensor& out, OperationQueue& queue, int member) {
    group_->run().check();
    auto request = std::make_unique<OperationRequest>(group_);
    const bool done =
        request->join(queue, member, call, {x.as<const std::byte>(), out.as<std::byte>()}, purpose_);
    return done ? Request() : Request(std::move(request));
  }
  Request call(const Call& what, const Tensor& x, const Tensor& out) {
    return call(what, x, out, group_->collectives(), rank_);
  }

  std::shared_ptr<ThreadsGroup> group_;
  int rank_;
  std::int64_t splits_ = 0;
};

// Collects the failures of all ranks.
class Failures {
 public:
  explicit Failures(int ranks) : ranks_(ranks) {}

  void add(int rank, std::exception_ptr error, const std::string& text) {
    const std::scoped_lock lock(mutex_);
    if (!first_) {
      first_ = std::move(error);
      rank_ = rank;
      text_ = text;
    }
    if (text == text_) ++same_;
  }

  // Throws the first failure again, with its type.
  void rethrow() const {
    if (!first_) return;
    try {
      std::rethrow_exception(first_);
    } catch (const Error& error) {
      if (same_ == ranks_) throw;
      const auto text = fmt::format("rank {}: {}", rank_, text_);
      if (typeid(error) == typeid(UserError)) throw UserError(text);
      if (typeid(error) == typeid(Error)) throw Error(text);
      throw;
    }
  }

 private:
  int ranks_;
  std::mutex mutex_;
  std::exception_ptr first_;
  std::string text_;
  int rank_ = 0, same_ = 0;
};

// Runs the body of one rank on the calling thread.
void run_rank(ThreadsRun& run, const std::shared_ptr<ThreadsGroup>& group, int rank, const RankBody& body,
              Failures& failures) {
  try {
    ThreadsCommunicator ranks(group, rank);
    const int size = ranks.size();
    World world{ranks, rank, size, std::max(1, usable_cores() / size),
                fmt::format("{} threads of this process", size)};
    body(world);
  } catch (const StoppedByPeer&) {
  } catch (...) {
    const auto text = handled_failure();
    failures.add(rank, std::current_exception(), text);
    run.stop(text);
  }
  run.set_ended(rank);
}

}  // namespace

void run_threads(const WorldOptions& options, const RankBody& body) {
  if (options.ranks < 1) fail("{} ranks: at least one is needed", options.ranks);
  if (options.ranks == 1) {
    const auto self = make_self_communicator();
    World world{*self, 0, 1, usable_cores(), "one process"};
    return body(world);
  }
  ThreadsRun run(options.ranks, options.deadline_seconds);
  Failures failures(options.ranks);
  {
    std::vector<int> members(static_cast<std::size_t>(options.ranks));
    std::iota(members.begin(), members.end(), 0);
    const auto group = std::make_shared<ThreadsGroup>(run, std::move(members));
    std::vector<std::jthread> threads;
    try {
      for (int rank = 1; rank < options.ranks; ++rank) {
        threads.emplace_back([&, rank] {
          log::mute_thread(true);
          run_rank(run, group, rank, body, failures);
        });
      }
    } catch (const std::exception& error) {
      run.stop(error.what());
      fail("cannot start {} threads: {}", options.ranks, message_of(error));
    }
    run_rank(run, group, 0, body, failures);
  }
  failures.rethrow();
  if (run.stopped()) throw Error(run.why());
}

}  // namespace shoal
