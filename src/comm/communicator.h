// Collectives over a group of ranks. A group of one rank is valid, and its collectives cost nothing. Every
// collective is asynchronous: it returns a request, and the caller must not touch the buffers until the
// request has been waited for. All ranks of a group call its collectives in the same order.
//
// A collective throws Error when its deadline passes; the message names the collective, its purpose and the
// missing ranks. It throws StoppedByPeer when another rank has failed. After either, the run has ended on
// every rank.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace shoal {

enum class ReduceOp : std::uint8_t { sum, max, min };

// A running collective. The destructor waits for it. An empty request has completed.
class Request {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;  // must not throw, nor leave the buffers in use
    virtual void wait() = 0;       // throws Error when the collective failed
  };

  Request() = default;
  explicit Request(std::unique_ptr<Pending> pending) : pending_(std::move(pending)) {}
  Request(Request&&) = default;
  Request& operator=(Request&& other) {  // NOLINT(performance-noexcept-move-constructor): waiting may throw
    wait();
    pending_ = std::move(other.pending_);
    return *this;
  }
  ~Request() = default;

  void wait() {
    if (auto pending = std::exchange(pending_, nullptr)) pending->wait();
  }
  bool empty() const { return !pending_; }

 private:
  std::unique_ptr<Pending> pending_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view name() const = 0;  // "self", "threads", "mpi", "nccl", "recording"
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Sets the purpose of this rank's next collectives on this group, e.g. "step 12, gradients of block.3".
  // Errors, recordings and traces show it.
  void set_purpose(std::string_view purpose) { purpose_ = purpose; }
  const std::string& purpose() const { return purpose_; }

  // n is the number of elements of x and may be 0. Copies take every dtype; reductions take f32, f64, bf16
  // and i32. A reduction gives the same bits on every rank, and on every call with the same group and sizes.
  // bf16 is added in float32 and rounded once.

  // x [n] on every rank becomes the reduction over ranks.
  virtual Request all_reduce(const Tensor& x, ReduceOp op = ReduceOp::sum) = 0;
  // out [n / size] becomes this rank's part of the reduction of x [n]; out may be that part of x. The other
  // parts of x are undefined afterwards.
  virtual Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op = ReduceOp::sum) = 0;
  // out [n * size] becomes the concatenation of every rank's x [n]; x may be this rank's part of out.
  virtual Request all_gather(const Tensor& out, const Tensor& x) = 0;
  // Part r of x [n] goes to rank r; out [n] receives part `rank()` of every rank.
  virtual Request all_to_all(const Tensor& out, const Tensor& x) = 0;
  virtual Request broadcast(const Tensor& x, int root) = 0;
  // Messages between two ranks arrive in the order they were sent. send may wait for its receive.
  virtual Request send(const Tensor& x, int to) = 0;
  virtual Request receive(const Tensor& x, int from) = 0;
  virtual void barrier() = 0;

  // Assigns a rank to a group of a split, as MPI_Comm_split does: ranks of equal colour form a group, ordered
  // by key, then by rank. Every rank computes the keys of all others, so a split needs no communication.
  struct SplitKey {
    int colour = 0;
    int key = 0;
  };
  using SplitKeys = std::function<SplitKey(int rank)>;
  // Collective over all ranks of this group, with the same function.
  virtual std::unique_ptr<Communicator> split(const SplitKeys& keys) = 0;

  // Collective. Announces that this rank will send to rank `to` and receive from rank `from`, so that
  // connections can be made now. Messages between other ranks stay possible.
  virtual void expect_messages(int /*to*/, int /*from*/) {}
  // Cancels this rank's running collectives: the rank has failed and is about to free their memory. Called
  // while the exception is handled, which the other ranks learn of at once, not when this rank has unwound.
  virtual void abandon() noexcept {}
  // Whether a rank is known to have failed, and the deadline of a collective. Callable from any thread, for
  // code that waits for other ranks outside this interface.
  virtual bool stopped() const { return false; }
  virtual double deadline_seconds() const { return std::numeric_limits<double>::infinity(); }

 protected:
  std::string purpose_;
};

// The members of the new group of `rank`, as ranks of the old group of `size`, in the order of their new
// ranks.
std::vector<int> members_of(const Communicator::SplitKeys& keys, int size, int rank);

// A group of one rank.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace shoal
