#include "simulate/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <cstring>

namespace shoal::simulate {

using messages::Channel;
using messages::Handle;
using messages::State;

namespace {

constexpr std::size_t kMostAtOnce = 4096;  // bytes of a message that may be sent without its receive

}  // namespace

Network::Network(Scheduler& scheduler, Faults& faults, int size)
    : scheduler_(scheduler), faults_(faults), size_(size) {}

// Most messages take some microseconds, a few much longer. None overtakes one before it.
Time Network::arrival(int from, int to, int tag, Channel channel) {
  auto& random = scheduler_.random();
  const double microseconds = random.chance(0.05) ? 5000 * random.share() : 5 + 60 * random.share();
  Time time = scheduler_.now() + from_seconds(microseconds * 1e-6) + faults_.delay_of_message();
  for (const auto& earlier : messages_) {
    if (earlier->from == from && earlier->to == to && earlier->tag == tag && earlier->channel == channel) {
      time = std::max(time, earlier->arrives);
    }
  }
  return time;
}

std::string Network::match(int rank) {
  for (auto receive = receives_.begin(); receive != receives_.end();) {
    const auto found = receive->to == rank ? first_for(*receive) : messages_.end();
    if (found == messages_.end()) {
      ++receive;
      continue;
    }
    const auto& message = **found;
    if (message.bytes != receive->bytes) {
      return fmt::format("{} bytes from rank {} meet a receive of {}", message.bytes, message.from,
                         receive->bytes);
    }
    if (message.bytes > 0) std::memcpy(receive->data, message.content.data(), message.bytes);
    messages_.erase(found);
    receive = receives_.erase(receive);
  }
  return "";
}

Network::Messages::iterator Network::first_for(const Receive& receive) {
  std::bitset<64> later;  // senders whose next message is not here yet
  return std::ranges::find_if(messages_, [&](const auto& message) {
    if (message->to != receive.to || message->channel != receive.channel || message->tag != receive.tag ||
        (receive.from != messages::kAnyRank && receive.from != message->from) ||
        later[static_cast<std::size_t>(message->from)]) {
      return false;
    }
    const bool came = message->arrives <= scheduler_.now();
    message->wanted |= came;
    if (!came || !message->sent) later[static_cast<std::size_t>(message->from)] = true;
    return came && message->sent;
  });
}

void Network::send_wanted(int rank) {
  for (const auto& message : messages_) {
    if (message->from == rank && message->wanted) message->send();
  }
}

void Network::Message::send() {
  if (sent) return;
  content.assign(data, data + bytes);
  sent = true;
}

bool SimulatedTransport::start() {
  auto& scheduler = network_.scheduler_;
  ++network_.started_;
  scheduler.wake(&network_.started_);
  while (network_.started_ < network_.size_) scheduler.wait(&network_.started_);
  return true;
}

void SimulatedTransport::finish() {
  auto& scheduler = network_.scheduler_;
  ++network_.finished_;
  scheduler.wake(&network_.finished_);
  while (network_.finished_ < network_.size_) scheduler.wait(&network_.finished_);
}

bool SimulatedTransport::send(Channel channel, const void* data, int bytes, int to, int tag, Handle& handle) {
  auto& network = network_;
  network.scheduler_.pass();
  network.faults_.at_message(fmt::format("sends {} bytes to rank {}, tag {}", bytes, to, tag));
  const auto size = static_cast<std::size_t>(bytes);
  auto message =
      std::make_shared<Network::Message>(Network::Message{.from = rank_,
                                                          .to = to,
                                                          .tag = tag,
                                                          .channel = channel,
                                                          .arrives = network.arrival(rank_, to, tag, channel),
                                                          .data = static_cast<const std::byte*>(data),
                                                          .bytes = size});
  handle.bits = ++network.last_handle_;
  network.sends_[handle.bits] = message;
  if (size <= kMostAtOnce && network.scheduler_.random().chance(0.5)) message->send();
  network.messages_.push_back(std::move(message));
  return true;
}

bool SimulatedTransport::receive(Channel channel, void* data, int bytes, int from, int tag, Handle& handle) {
  network_.scheduler_.pass();
  handle.bits = ++network_.last_handle_;
  network_.receives_.push_back({handle.bits, from, rank_, tag, channel, static_cast<std::byte*>(data),
                                static_cast<std::size_t>(bytes)});
  return true;
}

State SimulatedTransport::test(Handle& handle) {
  auto& network = network_;
  network.scheduler_.pass();
  network.send_wanted(rank_);
  error_ = network.match(rank_);
  if (!error_.empty()) return State::failed;
  if (const auto sent = network.sends_.find(handle.bits); sent != network.sends_.end()) {
    if (!sent->second->sent) return State::pending;
    network.sends_.erase(sent);
  }
  const bool waits = std::ranges::any_of(network.receives_,
                                         [&](const auto& receive) { return receive.handle == handle.bits; });
  return waits ? State::pending : State::done;
}

void SimulatedTransport::cancel(Handle& handle) {
  std::erase_if(network_.receives_, [&](const auto& receive) { return receive.handle == handle.bits; });
}

}  // namespace shoal::simulate
