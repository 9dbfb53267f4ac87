#include "comm/messages/control_channel.h"

namespace shoal::messages {
namespace {
constexpr int kTag = 1;
}

void ControlChannel::listen() {
  listening_ =
      transport_.receive(Channel::control, &incoming_, sizeof incoming_, kAnyRank, kTag, incoming_handle_);
}

void ControlChannel::send(int to, ControlMessage message) {
  message.from = transport_.rank();
  auto& out = outgoing_.emplace_back(Outgoing{message, {}});
  if (!transport_.send(Channel::control, &out.message, sizeof out.message, to, kTag, out.handle))
    outgoing_.pop_back();
}

void ControlChannel::send_all(ControlMessage message) {
  for (int i = 1; i < transport_.size(); ++i) send((transport_.rank() + i) % transport_.size(), message);
}

std::optional<ControlMessage> ControlChannel::receive() {
  if (!listening_) return std::nullopt;
  const auto state = transport_.test(incoming_handle_);
  if (state == State::pending) return std::nullopt;
  const ControlMessage message = incoming_;
  listen();
  return state == State::done ? std::optional(message) : std::nullopt;
}

bool ControlChannel::all_sent() {
  outgoing_.remove_if([&](Outgoing& out) { return transport_.test(out.handle) != State::pending; });
  return outgoing_.empty();
}

void ControlChannel::close() {
  if (listening_) transport_.cancel(incoming_handle_);
  listening_ = false;
}

}  // namespace shoal::messages
