#include "comm/mpi/transfer.h"

#include <algorithm>

#include "core/error.h"

namespace shoal::mpi {
namespace {
constexpr std::int64_t kLargestMessage = 1 << 30;  // MPI counts in int
}

Transfer::Transfer(Library& library, const std::vector<int>& members, Tags tags, Piece piece)
    : library_(library), members_(members), tags_(tags), piece_(std::move(piece)) {
  start(piece_.first, tags_.first);
}

bool Transfer::advance() {
  while (stage_ != Stage::done) {
    // One test suffices to let MPI go on with all of them.
    for (; next_ < handles_.size(); ++next_) {
      const auto state = library_.test(handles_[next_]);
      if (state == State::failed) fail("MPI: {}", library_.error());
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

void Transfer::start(const std::vector<Message>& messages, int tag) {
  handles_.clear();
  next_ = 0;
  for (const auto& message : messages) start(message, tag);
}

void Transfer::start(const Message& message, int tag) {
  const int peer = members_[static_cast<std::size_t>(message.peer)];
  std::int64_t sent = 0;
  do {
    const int bytes = static_cast<int>(std::min(kLargestMessage, message.bytes - sent));
    auto& handle = handles_.emplace_back();
    const bool started = message.way == Message::Way::send
                             ? library_.send(Channel::data, message.data + sent, bytes, peer, tag, handle)
                             : library_.receive(Channel::data, message.data + sent, bytes, peer, tag, handle);
    if (!started) fail("MPI: {}", library_.error());
    sent += bytes;
  } while (sent < message.bytes);
}

}  // namespace shoal::mpi
