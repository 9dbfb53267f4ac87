// Executes one piece of a plan: sends and receives its messages.
#pragma once

#include <vector>

#include "comm/messages/plan.h"
#include "comm/messages/transport.h"

namespace shoal::messages {

// Tags of a piece's first and second messages.
struct PieceTags {
  int first, second;
};

class PieceTransfer {
 public:
  // `members`: world ranks by rank in the group.
  PieceTransfer(Transport& transport, const std::vector<int>& members, PieceTags tags, Piece piece);
  PieceTransfer(const PieceTransfer&) = delete;
  PieceTransfer& operator=(const PieceTransfer&) = delete;

  // Starts the first messages. Throws Error when MPI fails; some may be running then, in the piece's memory.
  void start() { start(piece_.first, tags_.first); }
  // Makes progress without blocking and returns whether the piece is done. Throws Error when MPI fails.
  bool advance();

 private:
  enum class Stage : std::uint8_t { first, second, done };

  void start(const std::vector<Message>& messages, int tag);

  Transport& transport_;
  const std::vector<int>& members_;
  PieceTags tags_;
  Piece piece_;
  Stage stage_ = Stage::first;
  std::vector<Handle> handles_;  // messages of the current stage
  std::size_t next_ = 0;         // messages before this one are done
};

}  // namespace shoal::messages
