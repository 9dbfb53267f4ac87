#include "comm/messages/control.h"

namespace shoal::messages {
namespace {
constexpr int kTag = 1;
}

void Control::listen() {
  listening_ =
      transport_.receive(Channel::control, &incoming_, sizeof incoming_, kAnyRank, kTag, incoming_handle_);
}

void Control::send(int to, Note note) {
  note.from = transport_.rank();
  auto& out = outgoing_.emplace_back(Outgoing{note, {}});
  if (!transport_.send(Channel::control, &out.note, sizeof out.note, to, kTag, out.handle))
    outgoing_.pop_back();
}

void Control::send_all(Note note) {
  for (int i = 1; i < transport_.size(); ++i) send((transport_.rank() + i) % transport_.size(), note);
}

std::optional<Note> Control::receive() {
  if (!listening_) return std::nullopt;
  const auto state = transport_.test(incoming_handle_);
  if (state == State::pending) return std::nullopt;
  const Note note = incoming_;
  listen();
  return state == State::done ? std::optional(note) : std::nullopt;
}

bool Control::all_sent() {
  outgoing_.remove_if([&](Outgoing& out) { return transport_.test(out.handle) != State::pending; });
  return outgoing_.empty();
}

void Control::close() {
  if (listening_) transport_.cancel(incoming_handle_);
  listening_ = false;
}

}  // namespace shoal::messages
