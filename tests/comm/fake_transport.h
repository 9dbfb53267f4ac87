// A transport between threads of this process, to test the engine and the code above it without MPI, and
// under sanitizers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "comm/messages/transport.h"

namespace shoal::test {

// The messages in flight between all ranks.
class FakeNetwork {
 public:
  explicit FakeNetwork(int size) : size_(size), arrived_(static_cast<std::size_t>(size)) {}

  struct Packet {
    int from, tag;
    messages::Channel channel;
    std::vector<std::byte> bytes;
    bool taken = false;
  };
  int size() const { return size_; }
  std::mutex& mutex() { return mutex_; }
  std::deque<std::shared_ptr<Packet>>& arrived(int rank) { return arrived_[static_cast<std::size_t>(rank)]; }

 private:
  int size_;
  std::mutex mutex_;
  std::vector<std::deque<std::shared_ptr<Packet>>> arrived_;
};

class FakeTransport final : public messages::Transport {
 public:
  FakeTransport(FakeNetwork& network, int rank) : network_(network), rank_(rank) {}

  bool start() override { return true; }
  void finish() override {
    while (hangs_at_end) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  const char* error() const override { return error_; }
  int rank() const override { return rank_; }
  int size() const override { return network_.size(); }
  std::int64_t largest_tag() const override { return 32767; }
  const char* version() const override { return "fake"; }

  bool send(messages::Channel channel, const void* data, int bytes, int to, int tag,
            messages::Handle& handle) override {
    if (breaks(channel)) return failed();
    const auto* first = static_cast<const std::byte*>(data);
    auto packet = std::make_shared<FakeNetwork::Packet>(
        FakeNetwork::Packet{rank_, tag, channel, std::vector<std::byte>(first, first + bytes)});
    handle = next_handle(channel);
    if (bytes > eager) sends_[handle.bits] = packet;  // done when it has been received
    const std::scoped_lock lock(network_.mutex());
    network_.arrived(to).push_back(std::move(packet));
    return true;
  }

  bool receive(messages::Channel channel, void* data, int bytes, int from, int tag,
               messages::Handle& handle) override {
    if (breaks(channel)) return failed();
    handle = next_handle(channel);
    receives_.push_back({handle.bits, channel, data, bytes, from, tag});
    return true;
  }

  messages::State test(messages::Handle& handle) override {
    if (broken || (data_left <= 0 && is_data(handle))) {
      tested_again |= !broken_handles_.insert(handle.bits).second;
      return failed(), messages::State::failed;
    }
    const std::scoped_lock lock(network_.mutex());
    if (!progress()) return messages::State::failed;
    if (const auto sent = sends_.find(handle.bits); sent != sends_.end()) {
      if (!sent->second->taken) return messages::State::pending;
      sends_.erase(sent);
    }
    for (const auto& receive : receives_) {
      if (receive.handle == handle.bits) return messages::State::pending;
    }
    return messages::State::done;
  }

  void cancel(messages::Handle& handle) override {
    std::erase_if(receives_, [&](const Receive& receive) { return receive.handle == handle.bits; });
  }

  std::atomic<bool> broken = false;  // makes every later call fail
  // So many messages of data can still start. At 0 all calls for data fail, and none for control messages.
  std::atomic<int> data_left = std::numeric_limits<int>::max();
  bool hangs_at_end = false;
  int eager = 4096;           // bytes of a message that is done before it has been received
  bool tested_again = false;  // a message was tested after it had failed

 private:
  struct Receive {
    std::uintptr_t handle;
    messages::Channel channel;
    void* data;
    int bytes, from, tag;
  };

  messages::Handle next_handle(messages::Channel channel) {
    return {++last_ << 1 | (channel == messages::Channel::data ? 1u : 0u)};
  }
  static bool is_data(messages::Handle handle) { return (handle.bits & 1) != 0; }

  // Whether a message fails to start.
  bool breaks(messages::Channel channel) {
    return broken || (channel == messages::Channel::data && data_left-- <= 0);
  }

  bool failed() {
    error_ = "the cable is broken";
    return false;
  }

  // Matches receives with messages, both in their order.
  bool progress() {
    auto& arrived = network_.arrived(rank_);
    for (auto receive = receives_.begin(); receive != receives_.end();) {
      auto packet = arrived.begin();
      while (packet != arrived.end() && !fits(*receive, **packet)) ++packet;
      if (packet == arrived.end()) {
        ++receive;
        continue;
      }
      const auto& bytes = (*packet)->bytes;
      if (static_cast<int>(bytes.size()) != receive->bytes) {
        error_ = "message truncated";
        return false;
      }
      if (!bytes.empty()) std::memcpy(receive->data, bytes.data(), bytes.size());
      (*packet)->taken = true;
      arrived.erase(packet);
      receive = receives_.erase(receive);
    }
    return true;
  }
  static bool fits(const Receive& receive, const FakeNetwork::Packet& packet) {
    return receive.channel == packet.channel && receive.tag == packet.tag &&
           (receive.from == messages::kAnyRank || receive.from == packet.from);
  }

  FakeNetwork& network_;
  int rank_;
  std::uintptr_t last_ = 0;
  std::set<std::uintptr_t> broken_handles_;
  std::deque<Receive> receives_;
  std::map<std::uintptr_t, std::shared_ptr<FakeNetwork::Packet>> sends_;
  const char* error_ = "";
};

}  // namespace shoal::test
