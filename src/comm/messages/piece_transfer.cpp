#include "comm/messages/piece_transfer.h"

#include "core/error.h"

namespace shoal::messages {

PieceTransfer::PieceTransfer(Transport& transport, const std::vector<int>& members, PieceTags tags,
                             Piece piece)
    : transport_(transport), members_(members), tags_(tags), piece_(std::move(piece)) {}

bool PieceTransfer::advance() {
  while (stage_ != Stage::done) {
    // A test of one message lets MPI make progress with all, so stop at the first that is pending.
    for (; next_ < handles_.size(); ++next_) {
      const auto state = transport_.test(handles_[next_]);
      if (state == State::failed) fail("MPI: {}", transport_.error());
      if (state == State::pending) return false;
    }
    if (stage_ == Stage::first) {
      if (piece_.between) piece_.between();
      stage_ = Stage::second;
      start(piece_.second, tags_.second);
    } else {
      stage_ = Stage::done;
    }
  }
  return true;
}

void PieceTransfer::start(const std::vector<Message>& messages, int tag) {
  handles_.assign(messages.size(), {});
  next_ = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& [direction, member, data, length] = messages[i];
    const int peer = members_[static_cast<std::size_t>(member)], bytes = static_cast<int>(length);
    const bool started = direction == Message::Direction::send
                             ? transport_.send(Channel::data, data, bytes, peer, tag, handles_[i])
                             : transport_.receive(Channel::data, data, bytes, peer, tag, handles_[i]);
    if (!started) fail("MPI: {}", transport_.error());
  }
}

}  // namespace shoal::messages
