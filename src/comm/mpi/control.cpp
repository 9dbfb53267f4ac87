#include "comm/mpi/control.h"

namespace shoal::mpi {
namespace {
constexpr int kTag = 1;
}

void Control::listen() {
  listening_ =
      library_.receive(Channel::control, &incoming_, sizeof incoming_, kAnyRank, kTag, incoming_handle_);
}

void Control::send(int to, Note note) {
  note.from = library_.rank();
  auto& out = outgoing_.emplace_back(Outgoing{note, {}});
  if (!library_.send(Channel::control, &out.note, sizeof out.note, to, kTag, out.handle))
    outgoing_.pop_back();
}

void Control::send_all(Note note) {
  for (int i = 1; i < library_.size(); ++i) send((library_.rank() + i) % library_.size(), note);
}

std::optional<Note> Control::receive() {
  if (!listening_) return std::nullopt;
  const auto state = library_.test(incoming_handle_);
  if (state == State::pending) return std::nullopt;
  const Note note = incoming_;
  listen();
  return state == State::done ? std::optional(note) : std::nullopt;
}

bool Control::all_sent() {
  outgoing_.remove_if([&](Outgoing& out) { return library_.test(out.handle) != State::pending; });
  return outgoing_.empty();
}

void Control::close() {
  if (listening_) library_.cancel(incoming_handle_);
  listening_ = false;
}

}  // namespace shoal::mpi
