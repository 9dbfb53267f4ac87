// The messages between the ranks of a simulated job, with MPI's rules: they take a while, and only those of
// one sender, receiver, channel and tag stay in order. By chance a small one leaves the sender's memory when
// it is handed over; all others do so in a later call of the sender, once the receiver waits for them.
#pragma once

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
    const std::byte* data;  // the sender's
    std::size_t bytes;
    std::vector<std::byte> content = {};
    bool wanted = false;  // its receive is posted
    bool sent = false;    // `content` is filled

    void send();
  };
  struct Receive {
    std::uintptr_t handle;
    int from, to, tag;
    messages::Channel channel;
    std::byte* data;
    std::size_t bytes;
  };

  using Messages = std::vector<std::shared_ptr<Message>>;

  Time arrival(int from, int to, int tag, messages::Channel channel);
  void send_wanted(int rank);
  std::string match(int rank);  // receives what has come for a rank; says why it could not
  Messages::iterator first_for(const Receive& receive);  // that can be received now

  Scheduler& scheduler_;
  Faults& faults_;
  int size_;
  int started_ = 0, finished_ = 0;
  std::uintptr_t last_handle_ = 0;
  Messages messages_;              // not received yet, in the order of their sending
  std::vector<Receive> receives_;  // not matched yet, in the order of their posting
  std::map<std::uintptr_t, std::shared_ptr<Message>> sends_;  // that their sender has to test
};

class SimulatedTransport final : public messages::Transport {
 public:
  SimulatedTransport(Network& network, int rank) : network_(network), rank_(rank) {}

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
