// Collectives over a group of ranks. Layers and engines talk to their group even when it has one member:
// there it costs nothing. Every collective is asynchronous: it returns a request, and the buffers belong to
// it until it is waited for. All ranks of a group call its collectives in the same order.
//
// A collective fails with Error when its deadline passes (naming itself, its purpose and the ranks that did
// not come) and with StoppedByPeer when another rank has failed; then the run is over on every rank.
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

// A collective under way. Destroying it waits; an empty request is done.
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

  // What the next collectives of this rank are for, e.g. "step 12, gradients of block.3": for errors,
  // recordings and traces. Kept per group and rank.
  void set_purpose(std::string_view purpose) { purpose_ = purpose; }
  const std::string& purpose() const { return purpose_; }

  // Counts may be 0; n stands for the elements of x. Every dtype goes; reductions take f32, f64, bf16 and
  // i32, and are the same on every rank, and from call to call, for the same group and sizes. bf16 is added
  // in float32 and rounded once.

  // x [n] on every rank becomes the reduction over ranks.
  virtual Request all_reduce(const Tensor& x, ReduceOp op = ReduceOp::sum) = 0;
  // out [n / size] becomes this rank's part of the reduction of x [n]; it may be that part of x itself.
  // x is undefined afterwards, but for that part.
  virtual Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op = ReduceOp::sum) = 0;
  // out [n * size] becomes the concatenation of every rank's x [n]; x may be its own part of out.
  virtual Request all_gather(const Tensor& out, const Tensor& x) = 0;
  // part r of x [n] goes to rank r; out [n] receives part `rank()` of every rank.
  virtual Request all_to_all(const Tensor& out, const Tensor& x) = 0;
  virtual Request broadcast(const Tensor& x, int root) = 0;
  // Messages between two ranks arrive in the order they were sent. send may wait for its receive.
  virtual Request send(const Tensor& x, int to) = 0;
  virtual Request receive(const Tensor& x, int from) = 0;
  virtual void barrier() = 0;

  // Where a rank goes when a group is split: ranks of equal colour form a group, ordered by key, then by
  // rank. Every rank knows the place of every other, so no one has to ask.
  struct Place {
    int colour = 0;
    int key = 0;
  };
  using Places = std::function<Place(int rank)>;
  // Collective over all ranks of this group, with the same function.
  virtual std::unique_ptr<Communicator> split(const Places& places) = 0;

  // Collective: from now on this rank sends to rank `to` and receives from rank `from`, so what has to be set
  // up for it may be set up now. Other messages go all the same.
  virtual void expect_messages(int /*to*/, int /*from*/) {}
  // This rank has failed, and what it has begun need not end: memory of its collectives is about to go.
  virtual void abandon() noexcept {}
  // For who waits elsewhere for what ranks do together; from any thread. Whether the run is known to be over
  // because a rank has failed, and how long a collective may take.
  virtual bool stopped() const { return false; }
  virtual double deadline_seconds() const { return std::numeric_limits<double>::infinity(); }

 protected:
  std::string purpose_;
};

// The members of the group that `rank` of a group of `size` goes to, by their rank there, in the new order.
std::vector<int> members_of(const Communicator::Places& places, int size, int rank);

// The group of one.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace shoal
