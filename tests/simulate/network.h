// The messages between the ranks of a simulated job, with MPI's rules: they take a while, and only those of
// one sender, receiver, channel and tag stay in order. Small ones are sent when they are handed over, larger
// ones, by chance, when they are received.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/messages/transport.h"
#include "simulate/faults.h"
#include "simulate/scheduler.h"

namespace shoal::simulate {

class Network {
 public:
  Network(Scheduler& scheduler, Faults& faults, int size);

 private:
  friend class SimulatedTransport;

  struct Message {
    int from, to, tag;
    messages::Channel channel;
    Time arrives;
    const std::byte* data;  // the sender's; its copy where the message was sent at once
    std::vector<std::byte> copy = {};
    std::size_t bytes;
    bool received = false;
  };
  struct Receive {
    std::uintptr_t handle;
    int from, to, tag;
    messages::Channel channel;
    std::byte* data;
    std::size_t bytes;
  };

  Time arrival(int from, int to, int tag, messages::Channel channel);
  std::string match(int rank);  // receives what has come for a rank; says why it could not

  Scheduler& scheduler_;
  Faults& faults_;
  int size_;
  int started_ = 0, finished_ = 0;
  std::uintptr_t last_handle_ = 0;
  std::vector<std::shared_ptr<Message>> messages_;  // not received yet, in the order of their sending
  std::vector<Receive> receives_;                   // not matched yet, in the order of their posting
  std::map<std::uintptr_t, std::shared_ptr<Message>> sends_;  // that wait for their receive
};

class SimulatedTransport final : public messages::Transport {
 public:
  SimulatedTransport(Network& network, int rank) : network_(network), rank_(rank) {}
  ~SimulatedTransport();
  SimulatedTransport(const SimulatedTransport&) = delete;
  SimulatedTransport& operator=(const SimulatedTransport&) = delete;

  bool start() override;
  void finish() override;
  const char* error() const override { return error_.c_str(); }
  int rank() const override { return rank_; }
  int size() const override { return network_.size_; }
  std::int64_t largest_tag() const override { return 32767; }
  const char* version() const override { return "a simulation"; }
  bool send(messages::Channel channel, const void* data, int bytes, int to, int tag,
            messages::Handle& handle) override;
  bool receive(messages::Channel channel, void* data, int bytes, int from, int tag,
               messages::Handle& handle) override;
  messages::State test(messages::Handle& handle) override;
  void cancel(messages::Handle& handle) override;

 private:
  Network& network_;
  int rank_;
  std::string error_;
};

}  // namespace shoal::simulate
