// Collectives over a group of ranks. Layers and engines talk to their group even when it has one member:
// there it costs nothing. Every collective is asynchronous: it returns a request, and the buffers belong to
// it until it is waited for.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "core/tensor.h"

namespace shoal {

enum class ReduceOp : std::uint8_t { sum, max };

// A collective under way. Destroying it waits; an empty request is done.
class Request {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait() = 0;  // throws Error when the collective failed
  };

  Request() = default;
  explicit Request(std::unique_ptr<Pending> pending) : pending_(std::move(pending)) {}
  Request(Request&&) = default;
  Request& operator=(Request&& other) {  // NOLINT(performance-noexcept-move-constructor): waiting may throw
    wait();
    pending_ = std::move(other.pending_);
    return *this;
  }
  ~Request() {
    if (pending_) pending_->wait();
  }

  void wait() {
    if (auto pending = std::exchange(pending_, nullptr)) pending->wait();
  }

 private:
  std::unique_ptr<Pending> pending_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view name() const = 0;  // "self", "threads", "mpi", ...
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // x [n] on every rank becomes the reduction over ranks, in rank order.
  virtual Request all_reduce(const Tensor& x, ReduceOp op = ReduceOp::sum) = 0;
  // out [n / size] becomes this rank's part of the reduction of x [n].
  virtual Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op = ReduceOp::sum) = 0;
  // out [n * size] becomes the concatenation of every rank's x [n]; x may be its own part of out.
  virtual Request all_gather(const Tensor& out, const Tensor& x) = 0;
  // part r of x [n] goes to rank r; out [n] receives part `rank()` of every rank.
  virtual Request all_to_all(const Tensor& out, const Tensor& x) = 0;
  virtual Request broadcast(const Tensor& x, int root) = 0;
  virtual Request send(const Tensor& x, int to) = 0;
  virtual Request receive(const Tensor& x, int from) = 0;
  virtual void barrier() = 0;

  // Ranks of equal colour form a group, ordered by key, then by rank. Collective over all ranks.
  virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;
};

// The group of one.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace shoal
